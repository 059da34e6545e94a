//! The HTML page. It includes style and plots and loads nothing.

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use super::{Runs, is_fuse, is_nfs, is_peers, is_timed, mode_rows, plain, plots, short_title, title};
use crate::tables::kernel;

const STYLE: &str = "
body { font: 15px/1.5 sans-serif; color: #222; background: #fff; max-width: 88rem; margin: 2rem auto; \
padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .7rem 0; }
th, td { padding: .2rem .7rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #999; font-weight: 600; } tr:nth-child(even) td { background: #f5f5f5; }
th:first-child, td:first-child, .text { text-align: left; }
td.text { white-space: normal; }
.spread { color: #666; font-size: .87em; } .met { color: #00694b; } .missed { color: #a33b00; font-weight: \
600; }
svg { max-width: 100%; height: auto; display: block; margin: 1rem 0; }
pre { background: #f5f5f5; padding: .6rem; overflow-x: auto; } summary { cursor: pointer; }
";

/// The target ratios of the mount, to fuse2fs and to the null passthrough.
const TARGETS: [(&str, f64); 2] = [("fuse2fs", 4.0), ("null_passthrough", 0.8)];
/// The target of new over none.
const OVER_NONE: f64 = 0.99;

/// Formats a number as in the JSON, a text, or a dash.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "\u{2013}".to_owned(),
        Value::String(text) => plain(text),
        Value::Number(number) => match number.as_f64() {
            Some(whole) if number.is_f64() && whole.fract() == 0.0 => format!("{whole:.0}"),
            _ => number.to_string(),
        },
        other => plain(&other.to_string()),
    }
}

/// Formats a ratio and its quartiles over the rounds.
fn ratio(value: &Value, spread: &Value) -> Markup {
    html! {
        @if value.is_number() { (cell(value)) "\u{00d7}" } @else { "\u{2013}" }
        @if spread[0].is_number() { " " span.spread { "[" (cell(&spread[0])) ", " (cell(&spread[1])) "]" } }
    }
}

fn svg(svg: Option<String>) -> Markup {
    // The plotting crate escapes its input.
    html! { @if let Some(svg) = svg { (PreEscaped(svg)) } }
}

fn machines(machines: &[Value]) -> Markup {
    html! {
        @for machine in machines {
            div.wide { table {
                @for (name, value) in machine.as_object().into_iter().flatten() {
                    @match value {
                        Value::Object(tools) => {
                            @for (tool, version) in tools {
                                tr { td { (plain(tool)) } td.text { (cell(version)) } }
                            }
                        }
                        Value::Number(bytes) if name == "memory_bytes" => {
                            @let gib = bytes.as_f64().unwrap_or(0.0) / f64::from(1 << 30);
                            tr { td { "memory" } td.text { (format!("{gib:.1} GiB")) } }
                        }
                        value => { tr { td { (plain(name)) } td.text { (cell(value)) } } }
                    }
                }
            } }
        }
    }
}

/// A ratio with a target.
struct Verdict<'a> {
    row: &'a Value,
    what: String,
    target: f64,
    value: f64,
    spread: &'a Value,
}

fn verdicts<'a>(rows: &[&'a Value]) -> Vec<Verdict<'a>> {
    let mut verdicts = Vec::new();
    for &row in rows.iter().filter(|row| is_timed(row)) {
        let mut add = |what: String, target: f64, value: &'a Value, spread: &'a Value| {
            if let Some(value) = value.as_f64() {
                verdicts.push(Verdict { row, what, target, value, spread });
            }
        };
        // A curve is judged by its worst point.
        if let Some(points) = row["points"].as_array() {
            let ratios =
                [("new_over_old", "new over old", 1.0), ("new_over_none", "new over none", OVER_NONE)];
            for (key, name, target) in ratios {
                let worst = points
                    .iter()
                    .filter(|point| point[key].is_number())
                    .min_by(|a, b| a[key].as_f64().unwrap_or(0.0).total_cmp(&b[key].as_f64().unwrap_or(0.0)));
                let Some(worst) = worst else { continue };
                let at = if worst["label"].is_string() { &worst["label"] } else { &worst["x"] };
                let what = format!("{name}, worst of {} points: at {}", points.len(), cell(at));
                add(what, target, &worst[key], &worst["spread"][key]);
            }
            continue;
        }
        let spread = &row["spread"];
        let patch_series = row["patch_series"]["new_over_old"].as_f64().unwrap_or(1.0);
        add("new over old".to_owned(), patch_series.max(1.0), &row["new_over_old"], &spread["new_over_old"]);
        if is_fuse(row) {
            for (peer, target) in TARGETS {
                let spread = &spread["new_over_peer"][peer];
                add(
                    format!("over {}", plots::series(peer).name),
                    target,
                    &row["new_over_peer"][peer],
                    spread,
                );
            }
        } else {
            add("new over none".to_owned(), OVER_NONE, &row["new_over_none"], &spread["new_over_none"]);
        }
    }
    verdicts
}

fn targets(rows: &[&Value]) -> Markup {
    let verdicts = verdicts(rows);
    html! {
        @if !verdicts.is_empty() {
            h2 { "Targets" }
            p { "New over old: at least the figure of the patch series, and at least 1. New over none: \
                0.99. Through FUSE: four times fuse2fs, 0.8 of \
                 the null passthrough. Ratios above 1: new is better. In brackets: first and third \
                 quartile of the ratio per round." }
            div.wide { table {
                tr { th { "row" } th.text { "ratio" } th { "target" } th { "measured" } th.text { "" } }
                @for verdict in &verdicts {
                    @let (class, word) = match (verdict.value, verdict.spread[1].as_f64()) {
                        (value, _) if value >= verdict.target => ("met", "met"),
                        (_, Some(upper)) if upper >= verdict.target => ("spread", "within the spread"),
                        _ => ("missed", "missed"),
                    };
                    tr {
                        td { (title(verdict.row)) }
                        td.text { (verdict.what) }
                        td { (verdict.target) "\u{00d7}" }
                        td { (ratio(&verdict.value.into(), verdict.spread)) }
                        td.text { span class=(class) { (word) } }
                    }
                }
            } }
        }
    }
}

const MODES: [&str; 3] = ["old", "new", "none"];

fn modes(rows: &[&Value]) -> Result<Markup> {
    let hammered = plots::hammered(rows)?;
    let rows: Vec<_> = mode_rows(rows).collect();
    Ok(html! {
        @if !rows.is_empty() {
            h2 { "In-process" }
            p { "Nanoseconds per operation, medians. Old bumps at every change, new is the default of \
                ivers, none keeps no counter; the kernel's driver of the same \
                format is used through system calls." }
            div.wide { table {
                tr {
                    th { "row" } th { "operations" } th { "rounds" }
                    th { "old" } th { "new" } th { "none" } th { "kernel" }
                    th { "new / old" } th { "new / none" }
                }
                @for row in &rows { tr {
                    td { (title(row)) }
                    td { (cell(&row["ops"])) }
                    td { (cell(&row["rounds"])) }
                    @for mode in MODES { td { (cell(&row["ns_per_op"][mode])) } }
                    td { (cell(&kernel(row)["ns_per_op"])) }
                    td { (ratio(&row["new_over_old"], &row["spread"]["new_over_old"])) }
                    td { (ratio(&row["new_over_none"], &row["spread"]["new_over_none"])) }
                } }
            } }
            (svg(hammered))
        }
    })
}

/// Returns a section with our times beside those of the peers.
fn beside_peers(rows: &[&Value], is_one: fn(&Value) -> bool, heading: &str, text: &str) -> Markup {
    let rows: Vec<_> = rows.iter().filter(|row| is_one(row) && row["missing"].is_null()).collect();
    let peers = plots::names(rows.iter().map(|row| &row["peers"]), &[]);
    let modes = ["old", "none"].map(|mode| (mode, rows.iter().any(|row| row["ns_per_op"][mode].is_number())));
    let modes: Vec<_> = modes.iter().filter(|(_, is_there)| *is_there).map(|(mode, _)| *mode).collect();
    let head = |peer: &String| plots::series(peer).name;
    html! {
        @if !rows.is_empty() {
            h2 { (heading) }
            p { (text) }
            div.wide { table {
                tr {
                    th { "row" } th { "operations" } th { "rounds" } th { "ivers" }
                    @for mode in &modes { th { (mode) } }
                    @for peer in &peers { th { (head(peer)) } }
                }
                @for row in &rows { tr {
                    td { (short_title(row)) }
                    td { (cell(&row["ops"])) }
                    td { (cell(&row["rounds"])) }
                    td { (cell(&row["ns_per_op"]["new"])) }
                    @for mode in &modes { td { (cell(&row["ns_per_op"][*mode])) } }
                    @for peer in &peers { td { (cell(&row["peers"][peer.as_str()]["ns_per_op"])) } }
                } }
            } }
            p { "The peer's time over ours (above 1: ivers is faster):" }
            div.wide { table {
                tr {
                    th { "row" }
                    @for mode in &modes { th { (mode) } }
                    @for peer in &peers { th { (head(peer)) } }
                }
                @for row in &rows { tr {
                    td { (short_title(row)) }
                    @for mode in &modes {
                        @let key = format!("new_over_{mode}");
                        td { (ratio(&row[key.as_str()], &row["spread"][key.as_str()])) }
                    }
                    @for peer in &peers {
                        @let spread = &row["spread"]["new_over_peer"][peer.as_str()];
                        td { (ratio(&row["new_over_peer"][peer.as_str()], spread)) }
                    }
                } }
            } }
            @if let Some(options) = rows.iter().find_map(|row| row["options"].as_object()) {
                p { "Mounted with: "
                    @for (number, (name, words)) in options.iter().enumerate() {
                        @if number > 0 { "; " } (plots::series(name).name) " " code { (cell(words)) }
                    }
                    "." }
            }
            @if let Some(verdicts) = rows.iter().find_map(|row| row["e2fsck"].as_object()) {
                p { "Result of e2fsck on the images: "
                    @for (number, (name, verdict)) in verdicts.iter().enumerate() {
                        @if number > 0 { "; " } (plots::series(name).name) ": " (cell(verdict))
                    }
                    "." }
            }
        }
    }
}

const THROUGH_FUSE: &str = "Nanoseconds per operation, medians, on equal images. The null passthrough is \
    libfuse's passthrough_ll over the kernel's \
    ext4: the cost of FUSE itself. If it supports extended attributes, as ivers does, the kernel asks it \
    for security.capability before each write; \
    otherwise it does not. The kernel's ext4 is the limit.";
const OVER_NFS: &str = "Nanoseconds per request, medians, with our own client over loopback, on equal \
    images. Old is the same server with an \
    eager counter. nfs-ganesha uses its VFS backend on the kernel's ext4, with dirsync so that names are \
    durable before the reply, as with \
    ivers unless its export is async.";
const OTHER_LIBRARIES: &str = "Rust crates that can write ext4, and ivers as a library, in one process. \
    Nanoseconds per operation, including a sync at the end of \
    each round; images lie in memory. ext4plus cannot write to a journal: its image has none.";

fn reference(rows: &[&Value]) -> Result<Markup> {
    let plot = plots::beside_reference(rows)?;
    let rows: Vec<_> = rows.iter().filter(|row| row["patch_series"].is_object()).collect();
    Ok(html! {
        @if !rows.is_empty() {
            h2 { "Beside the patch series of 2017" }
            p { "The figures of the kernel series of December 2017, on other hardware, and those of the \
                same workload here. Sizes and times are scaled \
                 to this machine." }
            (svg(plot))
            div.wide { table {
                tr {
                    th { "row" } th { "new / old" } th { "2017" } th { "new / none" } th { "2017" }
                    th.text { "their workload" }
                }
                @for row in &rows { tr {
                    td { (title(row)) }
                    td { (ratio(&row["new_over_old"], &row["spread"]["new_over_old"])) }
                    td { (ratio(&row["patch_series"]["new_over_old"], &Value::Null)) }
                    td { (ratio(&row["new_over_none"], &row["spread"]["new_over_none"])) }
                    td { (ratio(&row["patch_series"]["new_over_none"], &Value::Null)) }
                    td.text { (cell(&row["patch_series"]["source"])) }
                } }
            } }
        }
    })
}

/// Returns a table of counts by mode.
fn counts<'a>(rows: &[&'a Value]) -> Markup {
    const COUNTED: [(&str, &str); 4] = [
        ("inode_updates", "inode updates"),
        ("journal_blocks", "journal blocks"),
        ("queries", "queries"),
        ("queries_per_second", "queries per second"),
    ];
    const WRITES: [(&str, &str); 3] =
        [("calls", "device writes"), ("bytes", "device bytes"), ("flushes", "flushes")];
    let counted = |row: &&&Value| {
        COUNTED.iter().any(|(key, _)| row[*key]["new"].is_number()) || row["device_writes"].is_object()
    };
    let rows: Vec<_> = rows.iter().filter(counted).collect();
    let three = |of: &dyn Fn(&'static str) -> &'a Value| match MODES.map(of) {
        figures if figures.iter().all(|figure| figure.is_null()) => cell(&Value::Null),
        figures => figures.map(cell).join(" / "),
    };
    html! {
        @if !rows.is_empty() {
            h2 { "Counts" }
            p { "Old / new / none, all rounds together." }
            div.wide { table {
                tr { th { "row" } @for (_, head) in COUNTED.iter().chain(&WRITES) { th { (head) } } }
                @for row in &rows { tr {
                    td { (title(row)) }
                    @for (key, _) in COUNTED { td { (three(&|mode| &row[key][mode])) } }
                    @for (key, _) in WRITES { td { (three(&|mode| &row["device_writes"][mode][key])) } }
                } }
            } }
        }
    }
}

fn latencies(rows: &[&Value]) -> Result<Markup> {
    let mut parts = Vec::new();
    for row in rows {
        let whose = plots::latencies(row);
        let Some(plot) = plots::latency(row)? else { continue };
        parts.push(html! {
            (svg(Some(plot)))
            div.wide { table {
                tr { th { (title(row)) ", ns" } @for (_, head) in plots::QUANTILES { th { (head) } } }
                @for (name, latency) in &whose {
                    tr {
                        td { (plots::series(name).name) }
                        @for (key, _) in plots::QUANTILES { td { (cell(&latency[key])) } }
                    }
                }
            } }
        });
    }
    Ok(html! { @if !parts.is_empty() { h2 { "Latency" } @for part in &parts { (part) } } })
}

fn curves(rows: &[&Value]) -> Result<Markup> {
    let mut parts = Vec::new();
    for row in rows {
        let Some(points) = row["points"].as_array() else { continue };
        let plot = plots::curve(row)?;
        parts.push(html! {
            (svg(plot))
            details {
                summary { (title(row)) ": " (points.len()) " points" }
                div.wide { table {
                    tr {
                        th { (cell(&row["x_name"])) } @for mode in MODES { th { (mode) } }
                        th { "new / old" } th { "new / none" }
                    }
                    @for point in points { tr {
                        @let x = if point["label"].is_string() { &point["label"] } else { &point["x"] };
                        td { (cell(x)) }
                        @for mode in MODES { td { (cell(&point[mode])) } }
                        td { (ratio(&point["new_over_old"], &point["spread"]["new_over_old"])) }
                        td { (ratio(&point["new_over_none"], &point["spread"]["new_over_none"])) }
                    } }
                } }
            }
        });
    }
    Ok(html! { @if !parts.is_empty() { h2 { "Curves" } @for part in &parts { (part) } } })
}

/// Rows that no table above contains.
fn others(rows: &[&Value]) -> Markup {
    let known: Vec<&Value> = mode_rows(rows).collect();
    let rows: Vec<_> = rows
        .iter()
        .filter(|row| {
            !is_fuse(row)
                && !is_nfs(row)
                && !is_peers(row)
                && row["points"].is_null()
                && !known.iter().any(|known| std::ptr::eq(*known, **row))
        })
        .collect();
    html! {
        @if !rows.is_empty() {
            h2 { "Other rows" }
            div.wide { table {
                tr {
                    th { "row" } th.text { "unit" } @for mode in MODES { th { (mode) } }
                    th { "new / old" } th { "new / none" }
                    th.text { "peers: ns per operation, and their time over ours" }
                }
                @for row in &rows { tr {
                    td { (title(row)) }
                    td.text { (cell(&row["unit"])) }
                    @for mode in MODES { td { (cell(&row[mode])) } }
                    td { (ratio(&row["new_over_old"], &row["spread"]["new_over_old"])) }
                    td { (ratio(&row["new_over_none"], &row["spread"]["new_over_none"])) }
                    td.text {
                        @let peers = row["peers"].as_object().into_iter().flatten();
                        @for (number, (name, peer)) in peers.enumerate() {
                            @if number > 0 { "; " }
                            (plain(name)) " " (cell(&peer["ns_per_op"])) ", "
                            @let spread = &row["spread"]["new_over_peer"][name.as_str()];
                            (ratio(&row["new_over_peer"][name.as_str()], spread))
                            @if let Some(ops) = row["peer_ops"][name.as_str()].as_u64() {
                                " (" (ops) " operations)"
                            }
                        }
                    }
                } }
            } }
        }
    }
}

fn missing(runs: &Runs) -> Markup {
    let mut lines: Vec<String> = runs.missing.iter().map(|line| plain(line)).collect();
    for row in &runs.rows {
        if let Some(why) = row["missing"].as_str() {
            lines.push(format!("{}: {}", title(row), plain(why)));
        }
        for (peer, why) in row["peers_missing"].as_object().into_iter().flatten() {
            lines.push(format!("{}: {}", plain(peer), cell(why)));
        }
    }
    let mut said: Vec<&String> = Vec::new();
    for line in &lines {
        if !said.contains(&line) {
            said.push(line);
        }
    }
    html! {
        @if !said.is_empty() {
            h2 { "Missing" }
            ul { @for line in &said { li { (line) } } }
        }
    }
}

/// Renders the page.
pub(crate) fn page(runs: &Runs) -> Result<String> {
    let rows: Vec<&Value> = runs.rows.iter().collect();
    let (main, reference, modes) = (plots::main(&rows)?, reference(&rows)?, modes(&rows)?);
    let (curves, latencies) = (curves(&rows)?, latencies(&rows)?);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "ivers bench" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "ivers bench" }
                (machines(&runs.machines))
                @if !runs.commands.is_empty() {
                    pre { @for command in &runs.commands { (plain(command)) "\n" } }
                }
                (svg(Some(main)))
                (targets(&rows))
                (reference)
                (modes)
                (beside_peers(&rows, is_fuse, "Through FUSE", THROUGH_FUSE))
                (beside_peers(&rows, is_nfs, "Over NFS", OVER_NFS))
                (beside_peers(&rows, is_peers, "Beside other libraries", OTHER_LIBRARIES))
                (others(&rows))
                (counts(&rows))
                (latencies)
                (curves)
                (missing(runs))
                h2 { "Rows" }
                p { "All rows, as printed by " code { "cargo xtask bench --json" } "." }
                @for row in &rows {
                    details { summary { (title(row)) } pre { (plain_lines(&format!("{row:#}"))) } }
                }
            }
        }
    };
    Ok(page.into_string())
}

/// Applies [`plain`] to each line.
fn plain_lines(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}
