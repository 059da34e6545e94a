//! Bar charts and line charts as SVG, independent of the data measured.

use anyhow::{Result, anyhow};
use plotters::chart::MeshStyle;
use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const WIDTH: u32 = 960;
const FONT: &str = "sans-serif";
const TEXT: RGBColor = RGBColor(34, 34, 34);
const GRID: RGBColor = RGBColor(222, 222, 222);
/// Space for the title and the legend.
const HEAD: u32 = 62;
/// Space for the labels below the axis.
const FOOT: u32 = 52;
const BAR: u32 = 15;
const GAP: u32 = 12;

/// A name and a colour.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) color: RGBColor,
}

/// Bars that belong together: one for each series, or none.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) label: String,
    pub(crate) values: Vec<Option<f64>>,
}

/// Horizontal bars.
#[derive(Debug)]
pub(crate) struct Bars {
    pub(crate) title: String,
    /// The label of the axis, with the unit.
    pub(crate) axis: String,
    pub(crate) is_log: bool,
    pub(crate) series: Vec<Series>,
    pub(crate) groups: Vec<Group>,
}

/// A line and its points.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) series: Series,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Lines over a common x axis.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) title: String,
    pub(crate) x_axis: String,
    pub(crate) y_axis: String,
    /// On a logarithmic axis zero means "never" and lies at the left edge.
    pub(crate) x_is_log: bool,
    pub(crate) lines: Vec<Line>,
}

/// Formats three significant digits, with a suffix for large numbers.
pub(crate) fn short(value: f64) -> String {
    let (value, suffix) = match value.abs() {
        large if large >= 1e9 => (value / 1e9, " G"),
        large if large >= 1e6 => (value / 1e6, " M"),
        large if large >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        0.0 => 0,
        large if large >= 100.0 => 0,
        large if large >= 10.0 => 1,
        large if large >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{suffix}")
}

fn style(size: u32, horizontal: HPos) -> TextStyle<'static> {
    TextStyle::from((FONT, size).into_font()).color(&TEXT).pos(Pos::new(horizontal, VPos::Center))
}

/// Estimates the width of a text: the viewer chooses the font.
fn width(text: &str) -> i32 {
    text.chars().count() as i32 * 7
}

/// Returns whether a value is plausible: the plotting crate overflows on axes of unbounded numbers.
fn is_drawable(value: f64) -> bool {
    value == 0.0 || (1e-15..1e15).contains(&value)
}

/// Returns the end of an axis that begins at zero.
fn end_of_axis(most: f64, room: f64) -> f64 {
    if most > 0.0 { most * room } else { 1.0 }
}

fn draw_error(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

fn head<'a>(area: &Area<'_>, title: &str, series: impl Iterator<Item = &'a Series>) -> Result<()> {
    area.draw(&Text::new(title.to_owned(), (16, 18), style(20, HPos::Left))).map_err(draw_error)?;
    let mut x = 16;
    for Series { name, color } in series {
        area.draw(&Rectangle::new([(x, 38), (x + 12, 50)], color.filled())).map_err(draw_error)?;
        area.draw(&Text::new(name.clone(), (x + 17, 44), style(15, HPos::Left))).map_err(draw_error)?;
        x += 17 + width(name) + 22;
    }
    Ok(())
}

impl Bars {
    fn is_shown(&self, value: f64) -> bool {
        is_drawable(value) && (!self.is_log || value > 0.0)
    }

    /// Returns the bars of a group with the number of their series; a missing bar takes no space.
    fn visible_bars(&self, group: &Group) -> Vec<(usize, f64)> {
        let bars = group.values.iter().enumerate().filter_map(|(at, value)| Some((at, (*value)?)));
        bars.filter(|(at, value)| *at < self.series.len() && self.is_shown(*value)).collect()
    }

    fn group_height(&self, group: &Group) -> u32 {
        self.visible_bars(group).len().max(1) as u32 * BAR + GAP
    }

    fn groups_height(&self) -> u32 {
        self.groups.iter().map(|group| self.group_height(group)).sum::<u32>().max(1)
    }

    fn height(&self) -> u32 {
        HEAD + FOOT + self.groups_height()
    }

    fn draw(&self, area: &Area<'_>) -> Result<()> {
        let has_bar = |at: usize| {
            self.groups.iter().any(|group| self.visible_bars(group).iter().any(|bar| bar.0 == at))
        };
        let series = self.series.iter().enumerate().filter(|(at, _)| has_bar(*at)).map(|(_, series)| series);
        head(area, &self.title, series)?;
        let place = |value: f64| if self.is_log { value.log10() } else { value };
        let values: Vec<f64> =
            self.groups.iter().flat_map(|group| self.visible_bars(group)).map(|(_, value)| value).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = match (self.is_log, values.is_empty()) {
            (_, true) => (0.0, 1.0),
            // Keeps the shortest bar visible.
            (true, false) => ((least.log10() - 0.15).floor(), (most.log10() + 0.01).ceil()),
            (false, false) => (0.0, end_of_axis(most, 1.02)),
        };
        let longest = self.groups.iter().map(|group| width(&group.label)).max().unwrap_or(0);
        let inner = area.margin(HEAD, 0, 8, 76);
        let height = self.groups_height();
        let mut chart = ChartBuilder::on(&inner)
            .x_label_area_size(FOOT)
            .y_label_area_size((longest + 20).clamp(60, 360))
            .build_cartesian_2d(low..high, 0.0..f64::from(height))
            .map_err(draw_error)?;
        let decades = (high - low).round() as usize + 1;
        let label = |at: &f64| short(if self.is_log { 10f64.powf(*at) } else { *at });
        draw_quietly(
            chart
                .configure_mesh()
                .disable_y_mesh()
                .y_labels(0)
                .x_labels(if self.is_log { decades } else { 8 })
                .x_label_formatter(&label)
                .x_desc(&self.axis),
        )?;
        let (left, above) = area.get_base_pixel();
        let mut below = f64::from(height);
        for group in &self.groups {
            let top = below;
            below -= f64::from(self.group_height(group));
            let mut upper = top - f64::from(GAP) / 2.0;
            for (at, value) in self.visible_bars(group) {
                let lower = upper - f64::from(BAR);
                let corners = [(low, lower + 1.0), (place(value), upper - 1.0)];
                let bar = Rectangle::new(corners, self.series[at].color.filled());
                chart.draw_series([bar]).map_err(draw_error)?;
                let (x, y) = chart.backend_coord(&(place(value), (upper + lower) / 2.0));
                let end = (x - left + 5, y - above + 1);
                area.draw(&Text::new(short(value), end, style(14, HPos::Left))).map_err(draw_error)?;
                upper = lower;
            }
            let (x, y) = chart.backend_coord(&(low, (top + below) / 2.0));
            let before = (x - left - 8, y - above);
            area.draw(&Text::new(group.label.clone(), before, style(15, HPos::Right))).map_err(draw_error)?;
        }
        Ok(())
    }
}

/// Draws axes and grid in a light colour.
fn draw_quietly<X, Y, XValue, YValue>(mesh: &mut MeshStyle<'_, '_, X, Y, SVGBackend<'_>>) -> Result<()>
where
    X: Ranged<ValueType = XValue> + ValueFormatter<XValue>,
    Y: Ranged<ValueType = YValue> + ValueFormatter<YValue>,
{
    mesh.label_style(style(14, HPos::Center))
        .axis_desc_style(style(15, HPos::Center))
        .axis_style(GRID)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(draw_error)
}

/// Draws bar charts below each other.
pub(crate) fn bars(charts: &[Bars]) -> Result<String> {
    let mut svg = String::new();
    {
        let height = charts.iter().map(Bars::height).sum::<u32>().max(1);
        let mut rest = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        rest.fill(&WHITE).map_err(draw_error)?;
        for chart in charts {
            let (area, below) = rest.split_vertically(chart.height());
            chart.draw(&area)?;
            rest = below;
        }
        rest.present().map_err(draw_error)?;
    }
    Ok(svg)
}

/// Draws a line chart.
pub(crate) fn lines(chart: &Lines) -> Result<String> {
    const HEIGHT: u32 = 380;
    let is_shown = |(x, y): &(f64, f64)| is_drawable(*x) && is_drawable(*y);
    let points: Vec<(f64, f64)> =
        chart.lines.iter().flat_map(|line| &line.points).copied().filter(is_shown).collect();
    let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::NEG_INFINITY, f64::max);
    let has_never = chart.x_is_log && points.iter().any(|(x, _)| *x == 0.0);
    let scaled = |x: f64| if chart.x_is_log { x.log10() } else { x };
    let mut finite = points.iter().map(|(x, _)| scaled(*x)).filter(|x| x.is_finite());
    let (mut left, mut right) = (least(&mut finite.clone()), most(&mut finite));
    if !left.is_finite() {
        (left, right) = (0.0, 1.0);
    }
    if chart.x_is_log {
        (left, right) = ((left + 1e-9).floor(), (right - 1e-9).ceil());
    }
    if left >= right {
        right = left + 1.0;
    }
    let never = left - if has_never { 1.0 } else { 0.0 };
    let place = |x: f64| if chart.x_is_log && x == 0.0 { never } else { scaled(x) };
    let top = end_of_axis(most(&mut points.iter().map(|(_, y)| *y)), 1.08);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        area.fill(&WHITE).map_err(draw_error)?;
        head(&area, &chart.title, chart.lines.iter().map(|line| &line.series))?;
        let inner = area.margin(HEAD, 4, 8, 32);
        let mut plot = ChartBuilder::on(&inner)
            .x_label_area_size(FOOT)
            .y_label_area_size(84)
            .build_cartesian_2d(never..right, 0.0..top)
            .map_err(draw_error)?;
        let label = |at: &f64| match chart.x_is_log {
            true if has_never && (*at - never).abs() < 0.01 => "never".to_owned(),
            true => short(10f64.powf(*at)),
            false => short(*at),
        };
        let decades = (right - never).round() as usize + 1;
        draw_quietly(
            plot.configure_mesh()
                .x_labels(if chart.x_is_log { decades } else { 10 })
                .y_labels(8)
                .x_label_formatter(&label)
                .y_label_formatter(&|y: &f64| short(*y))
                .x_desc(&chart.x_axis)
                .y_desc(&chart.y_axis),
        )?;
        for line in &chart.lines {
            let points: Vec<_> =
                line.points.iter().filter(|point| is_shown(point)).map(|(x, y)| (place(*x), *y)).collect();
            let stroke = line.series.color.stroke_width(2);
            plot.draw_series(LineSeries::new(points.iter().copied(), stroke)).map_err(draw_error)?;
            let dots = points.iter().map(|point| Circle::new(*point, 4, line.series.color.filled()));
            plot.draw_series(dots).map_err(draw_error)?;
        }
        area.present().map_err(draw_error)?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_short_numbers() {
        let texts = [0.0, 0.0123, 1.5, 99.94, 533.2, 9_999.0, 12_345.0, 2.5e6, 3e9].map(short);
        assert_eq!(texts, ["0", "0.012", "1.5", "99.9", "533", "9999", "12.3 k", "2.5 M", "3 G"]);
    }

    #[test]
    fn charts_of_no_bars_and_of_invalid_numbers_are_drawn() {
        let series = vec![Series { name: "<a&\"b>".to_owned(), color: RED }];
        for is_log in [false, true] {
            for values in [
                vec![],
                vec![Some(0.0)],
                vec![None],
                vec![Some(f64::NAN)],
                vec![Some(1e300)],
                vec![Some(-1.0)],
            ] {
                let groups = vec![Group { label: "<g>".to_owned(), values }];
                let chart = Bars {
                    title: String::new(),
                    axis: String::new(),
                    is_log,
                    series: series.clone(),
                    groups,
                };
                let svg = bars(&[chart]).unwrap();
                assert!(svg.contains("&lt;g&gt;") && !svg.contains("<a&"), "{svg}");
            }
            for points in [
                vec![],
                vec![(0.0, 1.0)],
                vec![(1.0, f64::NAN)],
                vec![(-1.0, 2.0)],
                vec![(5.0, 0.0), (5.0, 1.0)],
            ] {
                let line = Line { series: series[0].clone(), points };
                let texts = [String::new(), String::new(), String::new()];
                let [title, x_axis, y_axis] = texts;
                lines(&Lines { title, x_axis, y_axis, x_is_log: is_log, lines: vec![line] }).unwrap();
            }
        }
    }
}
