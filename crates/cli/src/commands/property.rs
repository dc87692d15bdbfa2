//! `butterfs property`: the grammar of btrfs-progs 6.2. A subvolume has `ro`, a filesystem its `label`, a file or
//! folder its `compression`.

use super::{Run, subcommands};
use crate::error::{CliError, os_message};
use crate::open_filesystem::{
    Asking, ImageArgument, Intent, Object as Reached, OpenFilesystem, about, cannot_access, plain,
};
use crate::output::{self, Format};
use butterfs_control::{ReadOnly, question};
use clap::{Subcommand, ValueEnum};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

subcommands! {
    /// Read and change properties of subvolumes, filesystems, files and folders
    Group {
        Get(GetArgs),
        Set(SetArgs),
        List(ListArgs),
    }
}

/// The type of object that a path is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ObjectType {
    #[value(alias = "i")]
    Inode,
    #[value(alias = "s")]
    Subvol,
    #[value(alias = "f")]
    Filesystem,
    #[value(alias = "d")]
    Device,
}

/// An object and how to take it.
#[derive(clap::Args, Clone, Debug)]
struct Object {
    /// Type of the object
    #[arg(short = 't', value_name = "TYPE", value_enum)]
    kind: Option<ObjectType>,
    #[command(flatten)]
    image: ImageArgument,
    /// The path of the object
    object: PathBuf,
}

const READ_ONLY: &str = "ro";
const LABEL: &str = "label";
const COMPRESSION: &str = "compression";
/// The attribute that the property is kept in.
const COMPRESSION_XATTR: &str = "btrfs.compression";

/// The properties, what has them, and what they are.
const PROPERTIES: [(&str, ObjectType, &str); 3] = [
    (READ_ONLY, ObjectType::Subvol, "read-only status of a subvolume"),
    (LABEL, ObjectType::Filesystem, "label of the filesystem"),
    (COMPRESSION, ObjectType::Inode, "compression algorithm for the file or directory"),
];

impl Object {
    /// Whether the object has a property of this kind, as far as the user has not said what it is.
    fn is(&self, kind: ObjectType, opened: &mut OpenFilesystem) -> Result<bool, CliError> {
        if let Some(said) = self.kind {
            return Ok(said == kind);
        }
        Ok(match kind {
            ObjectType::Subvol => opened.try_ask(get_read_only(&opened.object(&self.object)?))?.is_ok(),
            ObjectType::Filesystem => self.is_root(opened)?,
            ObjectType::Inode => true,
            ObjectType::Device => false,
        })
    }

    /// Whether the object stands for the whole filesystem.
    fn is_root(&self, opened: &OpenFilesystem) -> Result<bool, CliError> {
        if let OpenFilesystem::Image(filesystem) = opened {
            return Ok(opened.id_in_image(&self.object)? == filesystem.root());
        }
        let device = |path: &Path| rustix::fs::stat(path).map(|stat| stat.st_dev).ok();
        let real = self.object.canonicalize().map_err(|error| cannot_access(&self.object, error))?;
        Ok(real.parent().is_none_or(|parent| device(parent) != device(&real)))
    }

    /// The property of this name, which the object must be able to have.
    fn property(&self, name: &str, opened: &mut OpenFilesystem) -> Result<&'static str, CliError> {
        let found = PROPERTIES.iter().find(|(known, ..)| *known == name);
        let (name, kind, _) = found.ok_or_else(|| CliError::failed(format!("property '{name}' is not supported")))?;
        let fits = self.is(*kind, opened)?;
        // A subvolume that is none is told so by the engine.
        if fits || *kind == ObjectType::Subvol && self.kind.is_none() {
            return Ok(name);
        }
        Err(CliError::failed(format!("'{}' is not what has the property '{name}'", self.object.display())))
    }

    /// All properties that the object can have.
    fn properties(
        &self,
        opened: &mut OpenFilesystem,
    ) -> Result<Vec<&'static (&'static str, ObjectType, &'static str)>, CliError> {
        let mut found = Vec::new();
        for property in &PROPERTIES {
            found.extend(self.is(property.1, opened)?.then_some(property));
        }
        Ok(found)
    }

    /// The value of a property, if it has one.
    fn value(&self, name: &'static str, opened: &mut OpenFilesystem) -> Result<Option<Vec<u8>>, CliError> {
        let what = cannot("read", name, &self.object);
        match name {
            READ_ONLY => {
                let ReadOnly(read_only) = opened.ask_one(&what, get_read_only(&opened.object(&self.object)?))?;
                Ok(Some(read_only.to_string().into_bytes()))
            }
            LABEL => Ok(Some(opened.ask_one(&what, plain(question::GetLabel {}))?.0)),
            _ => self.compression(opened).map_err(|why| CliError::failed(format!("{what}: {why}"))),
        }
    }

    /// Nothing where the attribute is missing, or cannot be.
    fn compression(&self, opened: &OpenFilesystem) -> Result<Option<Vec<u8>>, String> {
        if let OpenFilesystem::Image(filesystem) = opened {
            let id = opened.id_in_image(&self.object).map_err(|_| "there is no such file".to_owned())?;
            return match filesystem.get_xattr(id, COMPRESSION_XATTR.as_bytes()) {
                Ok(value) => Ok(Some(value)),
                Err(error) if error.is(butterfs_fs::Errno::ENODATA) => Ok(None),
                Err(error) => Err(error.to_string()),
            };
        }
        let mut value = [0; 256];
        match rustix::fs::getxattr(&self.object, COMPRESSION_XATTR, &mut value) {
            Ok(len) => Ok(Some(value[..len].to_vec())),
            Err(rustix::io::Errno::NODATA) => Ok(None),
            Err(error) => Err(os_message(&error.into())),
        }
    }

    fn set_compression(&self, value: &[u8], opened: &OpenFilesystem) -> Result<(), String> {
        if let OpenFilesystem::Image(filesystem) = opened {
            let id = opened.id_in_image(&self.object).map_err(|_| "there is no such file".to_owned())?;
            let set = filesystem.set_xattr(&Default::default(), id, COMPRESSION_XATTR.as_bytes(), value, 0);
            return set.map_err(|error| error.to_string());
        }
        let flags = rustix::fs::XattrFlags::empty();
        let set = rustix::fs::setxattr(&self.object, COMPRESSION_XATTR, value, flags);
        set.map_err(|error| os_message(&error.into()))
    }
}

fn get_read_only(subvolume: &Reached) -> Asking<question::GetReadOnly> {
    about([subvolume], |[subvolume]| question::GetReadOnly { subvolume })
}

/// Show the value of a property; without a name, of all
#[derive(clap::Args, Clone, Debug)]
pub struct GetArgs {
    #[command(flatten)]
    object: Object,
    /// The property
    name: Option<String>,
}

impl Run for GetArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.object.image.open(&self.object.object, Intent::Look)?;
        let names = match &self.name {
            Some(name) => vec![self.object.property(name, &mut opened)?],
            None => self.object.properties(&mut opened)?.iter().map(|(name, ..)| *name).collect(),
        };
        let mut values = BTreeMap::new();
        for name in names {
            if let Some(value) = self.object.value(name, &mut opened)? {
                let value = String::from_utf8_lossy(&value).into_owned();
                match format {
                    Format::Text => writeln!(out, "{name}={value}")?,
                    Format::Json => drop(values.insert(name, value)),
                }
            }
        }
        if format == Format::Json {
            output::json(out, "property-get", &values)?;
        }
        opened.close()
    }
}

fn cannot(verb: &str, name: &str, object: &Path) -> String {
    format!("cannot {verb} property '{name}' of '{}'", object.display())
}

/// Change the value of a property
#[derive(clap::Args, Clone, Debug)]
pub struct SetArgs {
    /// Change it although that breaks something: a received subvolume that becomes writable is no longer a received one
    #[arg(short)]
    force: bool,
    #[command(flatten)]
    object: Object,
    /// The property
    name: String,
    /// Its value: true or false for ro; zlib, lzo, zstd, none or nothing for compression; any text for label
    value: String,
}

impl Run for SetArgs {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        let path = &self.object.object;
        let mut opened = self.object.image.open(path, Intent::Change)?;
        let name = self.object.property(&self.name, &mut opened)?;
        let what = cannot("change", name, path);
        match name {
            READ_ONLY => self.set_read_only(&mut opened, &what)?,
            LABEL => {
                let label = self.value.clone().into_bytes();
                opened.ask(&what, about([&opened.root()], |[through]| question::SetLabel { through, label }))?;
            }
            _ => {
                let set = self.object.set_compression(self.value.as_bytes(), &opened);
                set.map_err(|why| CliError::failed(format!("{what}: {why}")))?;
            }
        }
        opened.close()
    }
}

impl SetArgs {
    fn set_read_only(&self, opened: &mut OpenFilesystem, what: &str) -> Result<(), CliError> {
        let invalid = |_| CliError::failed(format!("invalid value for property: {}", self.value));
        let read_only: bool = self.value.parse().map_err(invalid)?;
        let subvolume = opened.object(&self.object.object)?;
        if !read_only && !self.force {
            refuse_received(opened, &subvolume)?;
        }
        opened.write_back(&self.object.object)?;
        let asking = about([&subvolume], |[subvolume]| question::SetReadOnly { subvolume, read_only });
        opened.ask(what, asking).map(drop)
    }
}

fn refuse_received(opened: &mut OpenFilesystem, subvolume: &Reached) -> Result<(), CliError> {
    let asking = about([subvolume], |[subvolume]| question::DescribeSubvolume { subvolume });
    let Ok(records) = opened.try_ask(asking)? else { return Ok(()) };
    let received = records.first().is_some_and(|record| record.is_read_only() && record.received_uuid != [0; 16]);
    if !received {
        return Ok(());
    }
    let sentence = "cannot make a received subvolume writable: it would lose the UUID that later streams look for";
    Err(CliError::failed(sentence).hint("'-f' does it; a writable snapshot of it may be what is wanted"))
}

/// List the properties that an object has
#[derive(clap::Args, Clone, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    object: Object,
}

impl Run for ListArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.object.image.open(&self.object.object, Intent::Look)?;
        let properties = self.object.properties(&mut opened)?;
        if format == Format::Json {
            let described: Vec<_> =
                properties.iter().map(|(name, _, about)| json!({ "name": name, "description": about })).collect();
            output::json(out, "property-list", &described)?;
            return opened.close();
        }
        for (name, _, about) in properties {
            writeln!(out, "{name:<20}{about}")?;
        }
        opened.close()
    }
}
