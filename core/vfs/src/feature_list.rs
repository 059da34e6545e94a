//! Lists of features for new filesystems, as `mke2fs -O` and `mkfs.xfs -m` name them.

/// The features that a list adds or removes, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeatureList(Vec<(String, bool)>);

impl FeatureList {
    /// Parses a list: `name` adds a feature, `^name` removes it, and commas separate. `aliases` are other
    /// names, each with the usual one. `check` gets each usual name and whether the feature is added. On
    /// error returns why not.
    pub fn parse(
        list: &str,
        aliases: &[(&str, &str)],
        mut check: impl FnMut(&str, bool) -> Result<(), String>,
    ) -> Result<Self, String> {
        let mut asked = Self::default();
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, on) = word.strip_prefix('^').map_or((word, true), |name| (name, false));
            let name = aliases.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, usual)| usual);
            if asked.asks(name) == Some(!on) {
                return Err(format!("{name} is both added and removed"));
            }
            check(name, on)?;
            asked.0.push((name.to_owned(), on));
        }
        Ok(asked)
    }

    /// Returns whether a feature is added (true) or removed (false). `None`: it is not named.
    pub fn asks(&self, name: &str) -> Option<bool> {
        self.0.iter().find(|(asked, _)| asked == name).map(|(_, on)| *on)
    }
}
