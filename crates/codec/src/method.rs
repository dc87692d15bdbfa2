//! Algorithms and their levels, as users name them and as the disk does.

use butterfs_ondisk::features::incompat;
use butterfs_ondisk::items::compression;

/// How an extent's bytes are encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Algorithm {
    /// RFC 1950.
    Zlib,
    /// LZO1X in segments of one sector.
    Lzo,
    /// One zstd frame.
    Zstd,
}

const NAMES: [(&str, Algorithm); 3] = [("zlib", Algorithm::Zlib), ("lzo", Algorithm::Lzo), ("zstd", Algorithm::Zstd)];

impl Algorithm {
    /// The algorithm of a file extent's `compression` field; `None` for none and for unknown values.
    pub const fn from_raw(raw: u8) -> Option<Algorithm> {
        match raw {
            compression::ZLIB => Some(Algorithm::Zlib),
            compression::LZO => Some(Algorithm::Lzo),
            compression::ZSTD => Some(Algorithm::Zstd),
            _ => None,
        }
    }

    /// The value of a file extent's `compression` field.
    pub const fn raw(self) -> u8 {
        match self {
            Algorithm::Zlib => compression::ZLIB,
            Algorithm::Lzo => compression::LZO,
            Algorithm::Zstd => compression::ZSTD,
        }
    }

    /// The name for users.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, algorithm)| *algorithm == self).map_or("", |(name, _)| name)
    }

    /// The level that the kernel uses when none is asked for.
    pub const fn default_level(self) -> i32 {
        match self {
            Algorithm::Zlib | Algorithm::Zstd => 3,
            Algorithm::Lzo => 0,
        }
    }

    /// The incompat feature that a filesystem with such data has.
    pub const fn incompat(self) -> u64 {
        match self {
            Algorithm::Zlib => 0,
            Algorithm::Lzo => incompat::COMPRESS_LZO,
            Algorithm::Zstd => incompat::COMPRESS_ZSTD,
        }
    }

    /// The level that is meant: 0 is the default, what is out of range the nearest.
    fn level(self, asked: i32) -> i32 {
        match (self, asked) {
            (Algorithm::Lzo, _) | (_, 0) => self.default_level(),
            (Algorithm::Zlib, asked) => asked.clamp(1, 9),
            (Algorithm::Zstd, asked) => asked.clamp(-15, 15),
        }
    }
}

/// An algorithm and its level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Method {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// As users count; 0 where there are none.
    pub level: i32,
}

impl From<Algorithm> for Method {
    fn from(algorithm: Algorithm) -> Method {
        Method { algorithm, level: algorithm.default_level() }
    }
}

impl Method {
    /// The level is the one that is meant: 0 stands for the default, and what is out of range for the nearest.
    pub fn new(algorithm: Algorithm, level: i32) -> Method {
        Method { algorithm, level: algorithm.level(level) }
    }

    /// As the kernel shows it: `zstd:3`, `lzo`.
    pub fn shown(self) -> String {
        match self.algorithm {
            Algorithm::Lzo => "lzo".to_owned(),
            algorithm => format!("{}:{}", algorithm.name(), self.level),
        }
    }

    /// Reads `zlib`, `lzo` or `zstd`, perhaps with `:level`.
    pub fn parse(text: &str) -> Option<Method> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, level.parse().ok()?),
            None => (text, 0),
        };
        let (_, algorithm) = *NAMES.iter().find(|(known, _)| *known == name)?;
        Some(Method::new(algorithm, level))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_read_as_users_write_them() {
        for (text, want) in [
            ("zlib", Some((Algorithm::Zlib, 3))),
            ("zlib:0", Some((Algorithm::Zlib, 3))),
            ("zlib:9", Some((Algorithm::Zlib, 9))),
            ("zlib:20", Some((Algorithm::Zlib, 9))),
            ("zstd:15", Some((Algorithm::Zstd, 15))),
            ("zstd:-3", Some((Algorithm::Zstd, -3))),
            ("lzo", Some((Algorithm::Lzo, 0))),
            ("lzo:5", Some((Algorithm::Lzo, 0))),
            ("zstd:", None),
            ("lz4", None),
            ("", None),
        ] {
            assert_eq!(Method::parse(text).map(|method| (method.algorithm, method.level)), want, "{text}");
        }
    }
}
