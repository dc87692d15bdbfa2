//! The options of `-o`: options of the engine, of the kernel's mount, and those that mean nothing here.
//!
//! One table. An option that is not in it is refused by name, because an option that is silently dropped is a promise
//! broken. Of several that contradict each other the last one counts, as in mount(8).

use super::Flags;
use crate::transport::Transport;
use butterfs_fs::options::ParityWrites;
use butterfs_fs::{AccessTimes, DeviceId, DiscardMode, Options, Rescue, Subvolume, TreeId};
use std::path::PathBuf;

/// See the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// For the engine.
    pub engine: Options,
    /// For the kernel.
    pub flags: Flags,
    /// Other users may enter.
    pub allow_other: bool,
    /// An existing mount is to be changed.
    pub remount: bool,
    /// How requests come.
    pub transport: Transport,
    /// The options about how new data is stored and freed space discarded, in order: an existing mount takes it too.
    pub data: Vec<String>,
    /// The id of the subvolume, where it is said beside its path.
    pub subvolume_id: Option<TreeId>,
    /// Devices of the filesystem besides the source of the mount.
    pub devices: Vec<PathBuf>,
}

/// Carries an option out; the text is what follows the equals sign, if there is one.
type Effect = fn(&mut MountOptions, &str) -> Result<(), String>;

/// The value that an option takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    None,
    Required,
    Optional,
}

use Value::{None as Bare, Optional, Required};

const IGNORED: Effect = |_, _| Ok(());

macro_rules! switch {
    ($field:ident, $value:literal) => {
        |options, _| {
            options.flags.$field = $value;
            Ok(())
        }
    };
}

/// Options by name. Kept in three groups: ours and btrfs', the kernel's, and those of mount(8) and of other tools.
const TABLE: &[(&str, Value, Effect)] = &[
    // btrfs, with an effect.
    ("ro", Bare, |options, _| set_read_only(options, true)),
    ("rw", Bare, |options, _| set_read_only(options, false)),
    ("subvol", Required, |options, value| {
        options.engine.subvolume = Subvolume::Path(value.as_bytes().to_vec());
        Ok(())
    }),
    ("subvolid", Required, |options, value| {
        let id = Some(number(value)?).filter(|id| *id != 0).map_or(TreeId::FS, TreeId);
        options.subvolume_id = Some(id);
        if !matches!(options.engine.subvolume, Subvolume::Path(_)) {
            options.engine.subvolume = Subvolume::Id(id);
        }
        Ok(())
    }),
    ("commit", Required, |options, value| {
        options.engine.commit_interval_secs = match number(value)? {
            0 => Options::default().commit_interval_secs,
            seconds => seconds,
        };
        Ok(())
    }),
    ("max_inline", Required, |options, value| {
        options.engine.max_inline = size(value)?.try_into().unwrap_or(u32::MAX);
        Ok(())
    }),
    ("compress", Optional, |options, value| data(options, "compress", value)),
    ("compress-force", Optional, |options, value| data(options, "compress-force", value)),
    ("datacow", Bare, |options, _| data(options, "datacow", "")),
    ("nodatacow", Bare, |options, _| data(options, "nodatacow", "")),
    ("datasum", Bare, |options, _| data(options, "datasum", "")),
    ("nodatasum", Bare, |options, _| data(options, "nodatasum", "")),
    ("skip_balance", Bare, |options, _| {
        options.engine.skip_balance = true;
        Ok(())
    }),
    ("discard", Optional, |options, value| discard(options, "discard", value)),
    ("nodiscard", Bare, |options, _| discard(options, "nodiscard", "")),
    ("rescan_uuid_tree", Bare, |options, _| {
        options.engine.rescan_uuid_tree = true;
        Ok(())
    }),
    ("user_subvol_rm_allowed", Bare, |options, _| {
        options.engine.user_subvol_rm_allowed = true;
        Ok(())
    }),
    ("device", Required, |options, value| {
        options.devices.push(value.into());
        Ok(())
    }),
    ("degraded", Bare, |options, _| {
        options.engine.degraded = true;
        Ok(())
    }),
    ("stale", Required, |options, value| {
        options.engine.stale.push(DeviceId(number(value)?));
        Ok(())
    }),
    ("raid56", Required, |options, value| {
        options.engine.parity_writes = match value {
            "inplace" => ParityWrites::InPlace,
            "cow" => ParityWrites::Copied,
            _ => return Err(format!("'{value}' is not one of inplace, cow")),
        };
        Ok(())
    }),
    ("rescue", Required, rescue),
    ("usebackuproot", Bare, |options, _| rescue(options, "usebackuproot")),
    ("at", Required, |options, value| {
        options.engine.rescue.commit = Rescue::parse_commit(value)?;
        options.engine.no_log_replay = true;
        Ok(())
    }),
    ("nologreplay", Bare, |options, _| rescue(options, "nologreplay")),
    ("norecovery", Bare, |options, _| rescue(options, "nologreplay")),
    ("notreelog", Bare, |options, _| {
        options.engine.no_tree_log = true;
        Ok(())
    }),
    ("treelog", Bare, |options, _| {
        options.engine.no_tree_log = false;
        Ok(())
    }),
    // btrfs, where what they ask for is so anyway, or is a hint about the medium.
    ("acl", Bare, IGNORED),
    ("autodefrag", Bare, IGNORED),
    ("noautodefrag", Bare, IGNORED),
    ("barrier", Bare, IGNORED),
    ("enospc_debug", Bare, IGNORED),
    ("noenospc_debug", Bare, IGNORED),
    ("flushoncommit", Bare, |options, _| {
        options.engine.flush_on_commit = true;
        Ok(())
    }),
    ("noflushoncommit", Bare, |options, _| {
        options.engine.flush_on_commit = false;
        Ok(())
    }),
    ("space_cache", Optional, |_, value| one_of(value, &["", "v2"])),
    ("ssd", Bare, IGNORED),
    ("nossd", Bare, IGNORED),
    ("ssd_spread", Bare, IGNORED),
    ("nossd_spread", Bare, IGNORED),
    ("thread_pool", Required, |_, value| number(value).map(drop)),
    // btrfs, and not here.
    ("noacl", Bare, |_, _| Err("access control lists always count here".to_owned())),
    ("nobarrier", Bare, |_, _| Err("flushes are never left out: a power cut would destroy the filesystem".to_owned())),
    ("clear_cache", Bare, |_, _| Err("no free space cache or tree is rebuilt by a mount here".to_owned())),
    ("nospace_cache", Bare, |_, _| Err("the free space tree, where there is one, is always kept".to_owned())),
    ("fatal_errors", Required, |_, _| Err("after an error the filesystem becomes read-only, and no more".to_owned())),
    ("metadata_ratio", Required, |_, _| Err("chunks of metadata are allocated as they are needed".to_owned())),
    ("fragment", Required, |_, _| Err("it is for tests of the kernel".to_owned())),
    ("ref_verify", Bare, |_, _| Err("it is for tests of the kernel".to_owned())),
    ("ref_tracker", Bare, |_, _| Err("it is for tests of the kernel".to_owned())),
    // The kernel's.
    ("allow_other", Bare, |options, _| {
        options.allow_other = true;
        Ok(())
    }),
    ("default_permissions", Bare, IGNORED),
    ("transport", Required, |options, value| {
        if options.remount {
            return Err("an existing mount keeps its transport".to_owned());
        }
        options.transport = match value {
            "auto" => Transport::Auto,
            "classic" => Transport::Classic,
            "uring" => Transport::Uring,
            _ => return Err(format!("'{value}' is not supported")),
        };
        Ok(())
    }),
    ("suid", Bare, switch!(nosuid, false)),
    ("nosuid", Bare, switch!(nosuid, true)),
    ("dev", Bare, switch!(nodev, false)),
    ("nodev", Bare, switch!(nodev, true)),
    ("exec", Bare, switch!(noexec, false)),
    ("noexec", Bare, switch!(noexec, true)),
    ("atime", Bare, |options, _| access_times(options, AccessTimes::Relative)),
    ("relatime", Bare, |options, _| access_times(options, AccessTimes::Relative)),
    ("norelatime", Bare, IGNORED),
    ("noatime", Bare, |options, _| access_times(options, AccessTimes::Never)),
    ("strictatime", Bare, |options, _| access_times(options, AccessTimes::Always)),
    ("nostrictatime", Bare, |options, _| access_times(options, AccessTimes::Relative)),
    ("diratime", Bare, switch!(nodiratime, false)),
    ("nodiratime", Bare, switch!(nodiratime, true)),
    ("symfollow", Bare, switch!(nosymfollow, false)),
    ("nosymfollow", Bare, switch!(nosymfollow, true)),
    ("sync", Bare, switch!(sync, true)),
    ("async", Bare, switch!(sync, false)),
    ("dirsync", Bare, switch!(dirsync, true)),
    ("lazytime", Bare, switch!(lazytime, true)),
    ("nolazytime", Bare, switch!(lazytime, false)),
    ("remount", Bare, |options, _| {
        options.remount = true;
        Ok(())
    }),
    // mount(8)'s own, and what fstab tells others.
    ("defaults", Bare, IGNORED),
    ("user", Optional, |options, _| as_user(options, true)),
    ("users", Bare, |options, _| as_user(options, true)),
    ("owner", Bare, |options, _| as_user(options, false)),
    ("group", Bare, |options, _| as_user(options, false)),
    ("nouser", Bare, IGNORED),
    ("nousers", Bare, IGNORED),
    ("noowner", Bare, IGNORED),
    ("nogroup", Bare, IGNORED),
    ("auto", Bare, IGNORED),
    ("noauto", Bare, IGNORED),
    ("nofail", Bare, IGNORED),
    ("_netdev", Bare, IGNORED),
    ("loop", Bare, IGNORED),
    ("silent", Bare, IGNORED),
    ("loud", Bare, IGNORED),
    ("mand", Bare, IGNORED),
    ("nomand", Bare, IGNORED),
    ("iversion", Bare, IGNORED),
    ("noiversion", Bare, IGNORED),
    ("comment", Required, IGNORED),
    ("uhelper", Required, IGNORED),
    // What a FUSE mount shows, and mount(8) hands back when it remounts.
    ("user_id", Required, remount_only),
    ("group_id", Required, remount_only),
    ("blksize", Required, remount_only),
    ("max_read", Required, remount_only),
];

impl MountOptions {
    /// Takes comma-separated lists apart. The error is a sentence that names the option.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<MountOptions, String> {
        let mut options = MountOptions::default();
        let items: Vec<&str> =
            lists.into_iter().flat_map(|list| list.split(',')).filter(|item| !item.is_empty()).collect();
        options.remount = items.contains(&"remount");
        for item in items {
            options.apply(item)?;
        }
        Ok(options)
    }

    /// The options among `items` that belong to the filesystem or its server, where they ask for something else than
    /// `self`. With one more mount of the same filesystem they have no effect.
    pub fn unheeded<'a>(&self, items: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let differs = |item: &&str| {
            let mut other = self.clone();
            other.apply(item).is_err() || !other.is_same_filesystem_as(self)
        };
        let items = items.into_iter().flat_map(|list| list.split(',')).filter(|item| !item.is_empty());
        items.filter(differs).map(str::to_owned).collect()
    }

    /// The options in force that belong to the filesystem and are not the kernel's to show, comma-separated.
    pub fn in_force(&self) -> String {
        let Options { commit_interval_secs, max_inline, data, stale, .. } = &self.engine;
        let default = Options::default();
        let method = data.compress.map(|method| {
            let name = if data.force { "compress-force" } else { "compress" };
            format!("{name}={}", method.shown())
        });
        let switches = [
            (self.engine.degraded, "degraded"),
            (data.nodatasum, "nodatasum"),
            (data.nodatacow, "nodatacow"),
            (self.engine.no_log_replay && !self.engine.rescue.is_any(), "rescue=nologreplay"),
            (self.engine.no_tree_log, "notreelog"),
            (self.engine.flush_on_commit, "flushoncommit"),
            (self.engine.rescan_uuid_tree, "rescan_uuid_tree"),
            (self.engine.user_subvol_rm_allowed, "user_subvol_rm_allowed"),
        ];
        let switches = switches.into_iter().filter(|(on, _)| *on).map(|(_, name)| name.to_owned());
        let numbers = [
            (*max_inline != default.max_inline).then(|| format!("max_inline={max_inline}")),
            (*commit_interval_secs != default.commit_interval_secs).then(|| format!("commit={commit_interval_secs}")),
        ];
        let discard = (self.engine.discard != DiscardMode::Off).then(|| self.engine.discard.option().to_owned());
        let parity = (self.engine.parity_writes == ParityWrites::Copied).then(|| "raid56=cow".to_owned());
        let stale = stale.iter().map(|id| format!("stale={id}"));
        let transport = match self.transport {
            Transport::Auto => None,
            Transport::Classic => Some("transport=classic".to_owned()),
            Transport::Uring => Some("transport=uring".to_owned()),
        };
        let all = switches
            .chain(self.engine.rescue.shown())
            .chain(method)
            .chain(discard)
            .chain(parity)
            .chain(numbers.into_iter().flatten())
            .chain(stale)
            .chain(transport);
        all.collect::<Vec<_>>().join(",")
    }

    /// Whether two mounts differ only in what each mount has of its own.
    fn is_same_filesystem_as(&self, other: &MountOptions) -> bool {
        let engine = |options: &MountOptions| Options {
            read_only: false,
            subvolume: Subvolume::Default,
            ..options.engine.clone()
        };
        let flags = |Flags { sync, dirsync, lazytime, .. }: Flags| (sync, dirsync, lazytime);
        (engine(self), flags(self.flags), self.transport) == (engine(other), flags(other.flags), other.transport)
    }

    fn apply(&mut self, item: &str) -> Result<(), String> {
        let (name, value) = item.split_once('=').map_or((item, None), |(name, value)| (name, Some(value)));
        if name.starts_with("x-") || name.starts_with("X-") {
            return Ok(());
        }
        let Some((_, takes, effect)) = TABLE.iter().find(|(known, ..)| *known == name) else {
            return Err(format!("unknown mount option '{name}'"));
        };
        match (takes, value) {
            (Bare, Some(_)) => return Err(format!("mount option '{name}' takes no value")),
            (Required, None | Some("")) => return Err(format!("mount option '{name}' needs a value")),
            _ => {}
        }
        effect(self, value.unwrap_or_default()).map_err(|why| format!("mount option '{item}': {why}"))
    }
}

fn set_read_only(options: &mut MountOptions, on: bool) -> Result<(), String> {
    options.engine.read_only = on;
    options.flags.read_only = on;
    Ok(())
}

fn access_times(options: &mut MountOptions, when: AccessTimes) -> Result<(), String> {
    options.engine.access_times = when;
    options.flags.noatime = matches!(when, AccessTimes::Never);
    options.flags.strictatime = matches!(when, AccessTimes::Always);
    Ok(())
}

/// A mount that users may make is one whose content is not trusted.
fn as_user(options: &mut MountOptions, noexec: bool) -> Result<(), String> {
    options.flags.nosuid = true;
    options.flags.nodev = true;
    options.flags.noexec |= noexec;
    Ok(())
}

fn rescue(options: &mut MountOptions, list: &str) -> Result<(), String> {
    for item in list.split(':') {
        let known = item == "nologreplay" || options.engine.rescue.apply(item).is_some();
        // Whatever is rescued: nothing is written, so no log is replayed.
        options.engine.no_log_replay |= known;
        if !known {
            return Err(format!("'{item}' is not supported"));
        }
    }
    Ok(())
}

/// Options that change how new data is stored, now or, with `remount`, on the existing mount.
fn data(options: &mut MountOptions, name: &str, value: &str) -> Result<(), String> {
    let option = if value.is_empty() { name.to_owned() } else { format!("{name}={value}") };
    options.engine.data.apply(&option).unwrap_or_else(|| Err("is not supported".to_owned()))?;
    options.data.push(option);
    Ok(())
}

/// When freed space is discarded, from now on or, with `remount`, on the existing mount.
fn discard(options: &mut MountOptions, name: &str, value: &str) -> Result<(), String> {
    let option = if value.is_empty() { name.to_owned() } else { format!("{name}={value}") };
    options.engine.discard = DiscardMode::parse(&option).ok_or_else(|| format!("'{value}' is not supported"))?;
    options.data.push(option);
    Ok(())
}

fn remount_only(options: &mut MountOptions, _: &str) -> Result<(), String> {
    if options.remount { Ok(()) } else { Err("is the kernel's to set".to_owned()) }
}

fn one_of(value: &str, known: &[&str]) -> Result<(), String> {
    if known.contains(&value) { Ok(()) } else { Err(format!("'{value}' is not supported")) }
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("'{text}' is not a number"))
}

/// Bytes, with a suffix k, m or g.
fn size(text: &str) -> Result<u64, String> {
    let shift = match text.as_bytes().last().map(u8::to_ascii_lowercase) {
        Some(b'k') => 10,
        Some(b'm') => 20,
        Some(b'g') => 30,
        _ => return number(text),
    };
    number(&text[..text.len() - 1])?.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_fs::{DataPolicy, Method};

    fn parsed(list: &str) -> MountOptions {
        MountOptions::parse([list]).unwrap()
    }

    #[test]
    fn options_reach_engine_and_kernel() {
        let options = parsed(
            "ro,degraded,subvol=/a/b,commit=5,max_inline=4k,noatime,rescue=nologreplay,notreelog,allow_other,\
                              skip_balance,rescan_uuid_tree,user_subvol_rm_allowed",
        );
        let engine = Options {
            read_only: true,
            subvolume: Subvolume::Path(b"/a/b".to_vec()),
            commit_interval_secs: 5,
            max_inline: 4096,
            access_times: AccessTimes::Never,
            no_log_replay: true,
            degraded: true,
            no_tree_log: true,
            skip_balance: true,
            rescan_uuid_tree: true,
            user_subvol_rm_allowed: true,
            ..Options::default()
        };
        assert_eq!(options.engine, engine);
        assert_eq!(options.flags, Flags { read_only: true, noatime: true, ..Flags::default() });
        assert!(options.allow_other && !options.remount);
        assert_eq!(parsed("subvolid=0x101").engine.subvolume, Subvolume::Id(TreeId(257)));
        assert_eq!(parsed("transport=auto,transport=uring").transport, Transport::Uring);
        assert_eq!(parsed("commit=0").engine.commit_interval_secs, 30);
    }

    #[test]
    fn further_mounts_have_flags_of_their_own_and_no_other_options() {
        let first = parsed("compress=zstd,commit=5,subvol=/a,noatime");
        let list = "ro,nosuid,subvolid=300,compress=zstd:3,commit=5,x-some,defaults,device=/dev/b";
        assert_eq!(first.unheeded([list]), [""; 0]);
        let list = "rw,compress=lzo,commit=6,relatime,sync,degraded,transport=classic,subvol=/b";
        let others = ["compress=lzo", "commit=6", "relatime", "sync", "degraded", "transport=classic"];
        assert_eq!(first.unheeded([list]), others);
    }

    #[test]
    fn a_subvolume_can_be_named_twice() {
        for list in ["subvolid=256,subvol=/a", "subvol=/a,subvolid=256"] {
            let options = parsed(list);
            assert_eq!(options.subvolume_id, Some(TreeId(256)));
            assert_eq!(options.engine.subvolume, Subvolume::Path(b"/a".to_vec()));
        }
    }

    #[test]
    fn devices_add_up() {
        assert_eq!(parsed("device=/dev/a,noatime,device=b").devices, [PathBuf::from("/dev/a"), "b".into()]);
    }

    #[test]
    fn the_last_one_counts() {
        assert_eq!(parsed("ro,noexec,sync,rw,exec,async"), MountOptions::default());
        assert!(parsed("rw,ro").engine.read_only);
        assert_eq!(parsed("noatime,relatime").engine.access_times, AccessTimes::Relative);
        assert_eq!(parsed("relatime,strictatime").engine.access_times, AccessTimes::Always);
        let lists = MountOptions::parse(["ro", "", "rw,,nodev"]).unwrap();
        assert_eq!(lists.flags, Flags { nodev: true, ..Flags::default() });
    }

    #[test]
    fn storing_of_data_is_remembered_in_order() {
        let options = parsed("nodatacow,compress,compress-force=zstd:9,nodatasum,compress=no,datasum");
        assert_eq!(
            options.data,
            ["nodatacow", "compress", "compress-force=zstd:9", "nodatasum", "compress=no", "datasum"]
        );
        assert_eq!(options.engine.data, DataPolicy::default());
        let policy = parsed("nodatacow,compress-force=zstd:9").engine.data;
        assert_eq!(policy, DataPolicy { compress: Method::parse("zstd:9"), force: true, ..DataPolicy::default() });
        assert_eq!(parsed("compress=no,compress=lzo,compress=none").engine.data, DataPolicy::default());
    }

    #[test]
    fn options_without_effect_are_accepted() {
        let line = "defaults,ssd,space_cache=v2,thread_pool=4,acl,x-systemd.automount,noauto,nofail,\
                    comment=mine,_netdev,default_permissions";
        assert_eq!(parsed(line), MountOptions::default());
        assert_eq!(parsed("users").flags, Flags { nosuid: true, nodev: true, noexec: true, ..Flags::default() });
    }

    #[test]
    fn the_rest_is_refused_by_name() {
        let table = [
            ("frobnicate", "unknown mount option 'frobnicate'"),
            ("transport=pigeon", "mount option 'transport=pigeon': 'pigeon' is not supported"),
            ("remount,transport=uring", "mount option 'transport=uring': an existing mount keeps its transport"),
            ("compress=lz4", "mount option 'compress=lz4': 'lz4' is not supported"),
            ("compress=zstd:x", "mount option 'compress=zstd:x': 'zstd:x' is not supported"),
            ("nodatacow=1", "mount option 'nodatacow' takes no value"),
            ("ro=1", "mount option 'ro' takes no value"),
            ("subvol", "mount option 'subvol' needs a value"),
            ("subvol=", "mount option 'subvol' needs a value"),
            ("commit=x", "mount option 'commit=x': 'x' is not a number"),
            ("rescue=most", "mount option 'rescue=most': 'most' is not supported"),
            (
                "nobarrier",
                "mount option 'nobarrier': flushes are never left out: a power cut would destroy the filesystem",
            ),
            (
                "fatal_errors=bug",
                "mount option 'fatal_errors=bug': after an error the filesystem becomes read-only, and no more",
            ),
            ("space_cache=v1", "mount option 'space_cache=v1': 'v1' is not supported"),
            ("user_id=0", "mount option 'user_id=0': is the kernel's to set"),
        ];
        for (list, sentence) in table {
            assert_eq!(MountOptions::parse([list]), Err(sentence.to_owned()));
        }
        assert!(parsed("user_id=0,remount").remount);
    }

    #[test]
    fn the_last_word_on_discard_counts() {
        let table = [
            ("noatime", DiscardMode::Off, &[][..]),
            ("discard", DiscardMode::Sync, &["discard"]),
            ("nodiscard,discard=async", DiscardMode::Async, &["nodiscard", "discard=async"]),
            ("discard=sync,nodiscard", DiscardMode::Off, &["discard=sync", "nodiscard"]),
        ];
        for (list, mode, said) in table {
            let options = parsed(list);
            assert_eq!(options.engine.discard, mode, "{list}");
            assert_eq!(options.data, said, "{list}");
        }
        assert_eq!(
            MountOptions::parse(["discard=never"]),
            Err("mount option 'discard=never': 'never' is not supported".to_owned())
        );
    }

    #[test]
    fn names_appear_once() {
        let mut names: Vec<&str> = TABLE.iter().map(|(name, ..)| *name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
