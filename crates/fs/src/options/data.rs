//! How new data is stored: compressed by which method, copied on write or not, with checksums or without.
//!
//! Names and levels as users write them. What a file's own flags and property say comes before the policy of the
//! mount; that is the business of `file`.

use butterfs_codec::{Algorithm, Method};

/// The mount options about new data (`compress=`, `compress-force=`, `nodatacow`, `nodatasum`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataPolicy {
    /// Compress what seems worth it.
    pub compress: Option<Method>,
    /// Try it with everything.
    pub force: bool,
    /// New files are written in place, and have no checksums.
    pub nodatacow: bool,
    /// New files have no checksums.
    pub nodatasum: bool,
}

impl DataPolicy {
    /// `compress=METHOD`; with it go checksums and copying on write. `no` and `none` stand for no method.
    pub fn compress(&mut self, method: Option<Method>, force: bool) {
        self.compress = method;
        self.force = force && method.is_some();
        if method.is_some() {
            (self.nodatacow, self.nodatasum) = (false, false);
        }
    }

    /// `nodatacow`: no checksums and no compression either.
    pub fn nodatacow(&mut self) {
        *self = DataPolicy { nodatacow: true, nodatasum: true, ..DataPolicy::default() };
    }

    /// Applies a mount option of these; `None`: it is not one. The error is the end of a sentence.
    pub fn apply(&mut self, option: &str) -> Option<Result<(), String>> {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("compress" | "compress-force", value) => match parse_compress(value) {
                Ok(method) => self.compress(method, name == "compress-force"),
                Err(why) => return Some(Err(why)),
            },
            ("nodatacow", None) => self.nodatacow(),
            ("nodatasum", None) => self.nodatasum = true,
            ("datacow", None) => self.nodatacow = false,
            ("datasum", None) => self.datasum(),
            _ => return None,
        }
        Some(Ok(()))
    }

    /// `datasum`: copying on write goes with it.
    pub fn datasum(&mut self) {
        (self.nodatacow, self.nodatasum) = (false, false);
    }
}

fn parse_compress(value: Option<&str>) -> Result<Option<Method>, String> {
    match value {
        None => Ok(Some(Algorithm::Zlib.into())),
        Some("no" | "none") => Ok(None),
        Some(text) => Method::parse(text).map(Some).ok_or_else(|| format!("'{text}' is not supported")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradicting_options_replace_each_other() {
        let mut policy = DataPolicy::default();
        policy.nodatacow();
        assert!(policy.nodatasum && policy.compress.is_none());
        policy.compress(Method::parse("zstd"), true);
        assert_eq!(policy, DataPolicy { compress: Method::parse("zstd"), force: true, ..DataPolicy::default() });
        policy.compress(None, true);
        assert_eq!(policy, DataPolicy::default());
    }

    /// As the kernel shows its options after these.
    #[test]
    fn options_count_in_order() {
        let applied = |list: &str| {
            let mut policy = DataPolicy::default();
            list.split(',').for_each(|option| policy.apply(option).expect("an option").expect("a value"));
            let method = policy.compress.map(|method| (method.algorithm.name(), method.level));
            (method, policy.force, policy.nodatacow, policy.nodatasum)
        };
        assert_eq!(applied("nodatacow,compress=zstd"), (Some(("zstd", 3)), false, false, false));
        assert_eq!(applied("compress,nodatacow"), (None, false, true, true));
        assert_eq!(applied("compress-force=zlib,compress=lzo"), (Some(("lzo", 0)), false, false, false));
        assert_eq!(applied("compress-force,compress=no"), (None, false, false, false));
        assert_eq!(applied("nodatasum,compress"), (Some(("zlib", 3)), false, false, false));
        assert_eq!(applied("nodatasum,compress=no"), (None, false, false, true));
        assert_eq!(applied("compress,nodatasum"), (Some(("zlib", 3)), false, false, true));
        assert_eq!(applied("nodatacow,datacow"), (None, false, false, true));
        assert_eq!(applied("nodatacow,datasum"), (None, false, false, false));
        assert_eq!(applied("compress=zstd:20").0, Some(("zstd", 15)));
    }
}
