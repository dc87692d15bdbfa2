//! Verbs on an image that nobody has mounted: each alone, or several in one transaction.

use super::place::{Place, said};
use super::records;
use crate::commands::Run;
use crate::error::CliError;
use crate::output::{self, Format};
use butterfs::{Access, Dir, FileType, Filesystem, Follow, Mode, Owner, Rename, SubvolumeId};
use butterfs_image::descent::Descent;
use butterfs_image::{
    FilesystemSource, FilesystemTarget, FolderSource, HostTarget, Owners, Source, TarSource, TarTarget,
};
use clap::Parser;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A verb that prints its result as JSON.
type Listing<A> = fn(A, &Dir, &mut dyn Write) -> Result<(), CliError>;

/// Work in an image.
pub trait Act: Sized {
    /// Whether it changes the image.
    const WRITES: bool;

    /// The same as JSON, where it lists something.
    const JSON: Option<Listing<Self>>;

    /// Does the work below `root`.
    fn act(self, root: &Dir, out: &mut dyn Write) -> Result<(), CliError>;
}

// A verb and the image that it works in; without a doc comment, so that the help is that of the verb.
#[derive(clap::Args, Debug)]
pub struct On<A: clap::Args> {
    #[command(flatten)]
    place: Root,
    #[command(flatten)]
    verb: A,
}

/// The image, and the folder in it at which paths begin.
#[derive(clap::Args, Debug)]
pub struct Root {
    /// Paths begin at the top level, and not at the default subvolume
    #[arg(long)]
    top: bool,
    /// The image, or a device; '@' and a number behind it mean a partition in it
    #[arg(value_name = "IMAGE[@NUMBER]")]
    image: String,
}

impl Root {
    fn open(&self, access: Access) -> Result<Filesystem, CliError> {
        Place::parse(&self.image).open(access)
    }

    fn root(&self, filesystem: &Filesystem) -> Result<Dir, CliError> {
        match self.top {
            true => filesystem.subvolume_root(SubvolumeId::TOP_LEVEL).map_err(said),
            false => Ok(filesystem.root()),
        }
    }
}

impl<A: clap::Args + Act> Run for On<A> {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let access = if A::WRITES { Access::ReadWrite } else { Access::ReadOnly };
        let filesystem = self.place.open(access)?;
        let root = self.place.root(&filesystem)?;
        if A::WRITES {
            // A verb that fails in the middle changes nothing.
            filesystem.transaction(|_| self.verb.act(&root, out).map_err(Failed))?;
        } else {
            self.verb.act(&root, out)?;
        }
        filesystem.close().map_err(said)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let Some(list) = A::JSON.filter(|_| format == Format::Json) else {
            output::must_be_text(format)?;
            return self.run(out);
        };
        let filesystem = self.place.open(Access::ReadOnly)?;
        let root = self.place.root(&filesystem)?;
        list(self.verb, &root, out)?;
        filesystem.close().map_err(said)
    }
}

macro_rules! verbs {
    ($($(#[$doc:meta])* $name:ident {
        $($(#[$attribute:meta])* $field:ident: $kind:ty,)*
    } $writes:literal, $act:ident $(, $json:expr)?;)*) => {
        $(
            $(#[$doc])*
            #[derive(clap::Args, Debug)]
            pub struct $name { $($(#[$attribute])* $field: $kind,)* }

            impl Act for $name {
                const WRITES: bool = $writes;
                const JSON: Option<Listing<$name>> = [$(Some($json as Listing<$name>),)? None][0];

                fn act(self, root: &Dir, out: &mut dyn Write) -> Result<(), CliError> {
                    $act(self, root, out)
                }
            }
        )*

        /// A line of a script.
        #[derive(Parser, Debug)]
        #[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
        enum Line { $($(#[$doc])* $name($name),)* }

        impl Line {
            fn act(self, root: &Dir, out: &mut dyn Write) -> Result<(), CliError> {
                match self { $(Line::$name(verb) => verb.act(root, out),)* }
            }
        }
    };
}

verbs! {
    /// List a folder
    Ls {
        /// Show type, mode, owner, group, size and time
        #[arg(short, long)]
        long: bool,
        /// The folder or file
        #[arg(default_value = "/")]
        path: PathBuf,
    } false, ls, |it, root, out| records::ls(&it.path, root, out);
    /// Print the content of a file
    Cat {
        /// The file
        path: PathBuf,
    } false, cat;
    /// Show the attributes of a file or folder
    Stat {
        /// The file or folder
        path: PathBuf,
    } false, stat, |it, root, out| records::stat(&it.path, root, out);
    /// List a folder and everything below it
    Tree {
        /// The folder
        #[arg(default_value = "/")]
        path: PathBuf,
    } false, tree, |it, root, out| records::tree(&it.path, root, out);
    /// Copy a file or folder of this machine into the image
    CpIn {
        /// Everything belongs to user 0 and group 0
        #[arg(long)]
        all_root: bool,
        /// The file or folder
        source: PathBuf,
        /// Its path in the image
        path: PathBuf,
    } true, cp_in;
    /// Copy a file or folder of the image to this machine
    CpOut {
        /// The file or folder in the image
        path: PathBuf,
        /// The copy; files are not replaced
        target: PathBuf,
    } false, cp_out;
    /// Put the content of an archive of tar into a folder of the image
    TarIn {
        /// Everything belongs to user 0 and group 0
        #[arg(long)]
        all_root: bool,
        /// The folder
        path: PathBuf,
        /// The archive; '-' is the standard input
        #[arg(default_value = "-")]
        archive: PathBuf,
    } true, tar_in;
    /// Write a folder of the image to the standard output as an archive of tar
    TarOut {
        /// The folder
        #[arg(default_value = "/")]
        path: PathBuf,
    } false, tar_out;
    /// Make a folder
    Mkdir {
        /// Make missing folders above it too; an existing one is no error
        #[arg(short, long)]
        parents: bool,
        /// Its mode
        #[arg(short, long, value_parser = octal, default_value = "755")]
        mode: u32,
        /// The folder
        path: PathBuf,
    } true, mkdir;
    /// Remove a file, or with -r a folder with everything in it
    Rm {
        /// Folders too
        #[arg(short, long)]
        recursive: bool,
        /// The files
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    } true, rm;
    /// Give a file or folder another name
    Mv {
        /// The file or folder
        from: PathBuf,
        /// The new name; an existing file of that name is replaced
        to: PathBuf,
    } true, mv;
    /// Make a hard link, or with -s a symbolic one
    Ln {
        /// A symbolic link
        #[arg(short, long)]
        symbolic: bool,
        /// The target of the link
        target: PathBuf,
        /// The link
        path: PathBuf,
    } true, ln;
    /// Change the mode
    Chmod {
        /// The mode in octal digits
        #[arg(value_parser = octal)]
        mode: u32,
        /// The file or folder
        path: PathBuf,
    } true, chmod;
    /// Change owner and group
    Chown {
        /// Numbers of both
        #[arg(value_name = "UID:GID", value_parser = owner)]
        owner: Owner,
        /// The file or folder
        path: PathBuf,
    } true, chown;
    /// Set an extended attribute, or with -x remove it
    Setfattr {
        /// Remove it
        #[arg(short = 'x', long)]
        remove: bool,
        /// The value
        #[arg(short, long, default_value = "")]
        value: OsString,
        /// The name
        #[arg(short, long)]
        name: OsString,
        /// The file or folder
        path: PathBuf,
    } true, setfattr;
}

/// Run verbs from the standard input, one on a line, in one transaction: all of them, or after an error none
#[derive(clap::Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    place: Root,
}

impl Run for RunArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(io::stdin().lock().split(b'\n')) {
            let line = line.map_err(|error| CliError::failed(format!("cannot read the script: {error}")))?;
            let words =
                words(&line).ok_or_else(|| CliError::failed(format!("line {number} has a quote without an end")))?;
            if !words.is_empty() {
                lines.push((number, Line::try_parse_from(words).map_err(|error| at(number, CliError::from(error)))?));
            }
        }
        let filesystem = self.place.open(Access::ReadWrite)?;
        let root = self.place.root(&filesystem)?;
        filesystem.transaction(|_| {
            lines
                .into_iter()
                .try_for_each(|(number, line)| line.act(&root, out).map_err(|error| Failed(at(number, error))))
        })?;
        filesystem.close().map_err(said)
    }
}

/// An error of a transaction.
struct Failed(CliError);

impl From<butterfs::Error> for Failed {
    fn from(error: butterfs::Error) -> Failed {
        Failed(said(error))
    }
}

impl From<Failed> for CliError {
    fn from(Failed(error): Failed) -> CliError {
        error
    }
}

/// The error with the number of its line.
fn at(number: i32, error: CliError) -> CliError {
    match error {
        CliError::Failed { sentence, hints, .. } => {
            hints.into_iter().fold(CliError::failed(format!("line {number}: {sentence}")), CliError::hint)
        }
        other => other,
    }
}

/// The words of a line: blanks separate them, quotes and backslashes keep blanks in them, `#` begins a comment.
fn words(line: &[u8]) -> Option<Vec<OsString>> {
    let mut out: Vec<OsString> = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut quote = None;
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, quote) {
            (b'\\', None | Some(b'"')) => word.get_or_insert_default().push(bytes.next()?),
            (byte, Some(open)) if byte == open => quote = None,
            (b'\'' | b'"', None) => {
                quote = Some(byte);
                word.get_or_insert_default();
            }
            (b'#', None) if word.is_none() => break,
            (b' ' | b'\t' | b'\r', None) => out.extend(word.take().map(OsString::from_vec)),
            (byte, _) => word.get_or_insert_default().push(byte),
        }
    }
    out.extend(word.map(OsString::from_vec));
    quote.is_none().then_some(out)
}

fn octal(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| "a mode has up to four octal digits".to_owned())
}

fn owner(text: &str) -> Result<Owner, String> {
    let pair = text.split_once(':').and_then(|(user, group)| Some(Owner::new(user.parse().ok()?, group.parse().ok()?)));
    pair.ok_or_else(|| format!("'{text}' is not UID:GID in numbers"))
}

fn letter(kind: FileType) -> char {
    match kind {
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::CharDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        _ => '-',
    }
}

/// A name as a terminal can show it.
fn shown(name: &OsStr) -> impl std::fmt::Display + '_ {
    name.as_bytes().escape_ascii()
}

fn line(root: &Dir, path: &Path, name: &OsStr, long: bool, out: &mut dyn Write) -> Result<(), CliError> {
    if long {
        let node = root.node(path, Follow::Nothing).map_err(said)?;
        let it = node.metadata().map_err(said)?;
        let (mode, owner, size) = (it.mode().bits() & 0o7777, it.owner(), it.len());
        let time = it.modified();
        write!(
            out,
            "{}{mode:04o} {} {} {size} {}.{:09} ",
            letter(it.file_type()),
            owner.uid,
            owner.gid,
            time.secs(),
            time.nanos()
        )?;
    }
    Ok(writeln!(out, "{}", shown(name))?)
}

/// The names in a folder, sorted.
pub fn names(root: &Dir, path: &Path) -> Result<Vec<OsString>, CliError> {
    let entries = root.read_dir(path).map_err(said)?;
    let mut names: Vec<OsString> = entries
        .map(|entry| entry.map(|entry| entry.file_name().to_owned()))
        .collect::<butterfs::Result<_>>()
        .map_err(said)?;
    names.sort();
    Ok(names)
}

fn ls(Ls { long, path }: Ls, root: &Dir, out: &mut dyn Write) -> Result<(), CliError> {
    if !root.metadata(&path).map_err(said)?.is_dir() {
        return line(root, &path, path.as_os_str(), long, out);
    }
    names(root, &path)?.iter().try_for_each(|name| line(root, &path.join(name), name, long, out))
}

fn cat(Cat { path }: Cat, root: &Dir, out: &mut dyn Write) -> Result<(), CliError> {
    let mut file = root.open_file(&path).map_err(said)?;
    let mut buffer = vec![0; 1 << 18];
    loop {
        let read = file.read(&mut buffer).map_err(|error| CliError::failed(error.to_string()))?;
        if read == 0 {
            return Ok(());
        }
        out.write_all(&buffer[..read])?;
    }
}

fn stat(Stat { path }: Stat, root: &Dir, out: &mut dyn Write) -> Result<(), CliError> {
    let node = root.node(&path, Follow::Nothing).map_err(said)?;
    let it = node.metadata().map_err(said)?;
    writeln!(out, "Path:      {}", shown(path.as_os_str()))?;
    writeln!(out, "Type:      {:?}", it.file_type())?;
    writeln!(out, "Mode:      {:04o}", it.mode().bits() & 0o7777)?;
    writeln!(out, "Owner:     {}:{}", it.owner().uid, it.owner().gid)?;
    writeln!(out, "Size:      {}", it.len())?;
    writeln!(out, "Allocated: {}", it.allocated_bytes())?;
    writeln!(out, "Links:     {}", it.links())?;
    writeln!(out, "Inode:     {} in subvolume {}", it.id().number, it.id().subvolume)?;
    for (name, time) in
        [("Modified", it.modified()), ("Changed", it.changed()), ("Accessed", it.accessed()), ("Created", it.created())]
    {
        writeln!(out, "{:<10} {}.{:09}", format!("{name}:"), time.secs(), time.nanos())?;
    }
    if it.is_symlink() {
        writeln!(out, "Target:    {}", shown(node.read_link().map_err(said)?.as_os_str()))?;
    }
    for name in node.xattrs().map_err(said)? {
        let value = node.xattr(&name).map_err(said)?.unwrap_or_default();
        writeln!(out, "Attribute: {}={}", shown(&name), value.escape_ascii())?;
    }
    Ok(())
}

fn tree(Tree { path }: Tree, root: &Dir, out: &mut dyn Write) -> Result<(), CliError> {
    writeln!(out, "{}", shown(path.as_os_str()))?;
    if !root.symlink_metadata(&path).map_err(said)?.is_dir() {
        return Ok(());
    }
    let mut way = Descent::new(root.open_dir(&path).map_err(said)?);
    let mut waiting = vec![(Vec::new(), true)];
    while let Some((below, is_folder)) = waiting.pop() {
        if !below.is_empty() {
            writeln!(out, "{}", shown(path.join(OsStr::from_bytes(&below)).as_os_str()))?;
        }
        if !is_folder {
            continue;
        }
        let open = |above: &Dir, _: &[u8], name: &[u8]| above.open_dir(OsStr::from_bytes(name));
        let mut entries: Vec<(OsString, FileType)> = way
            .enter(&below, open)
            .and_then(|folder| {
                folder.read_dir(".")?.map(|entry| entry.map(|it| (it.file_name().to_owned(), it.file_type()))).collect()
            })
            .map_err(said)?;
        entries.sort_by(|one, other| other.0.cmp(&one.0));
        waiting.extend(entries.into_iter().map(|(name, kind)| {
            (Path::new(OsStr::from_bytes(&below)).join(name).into_os_string().into_vec(), kind == FileType::Directory)
        }));
    }
    Ok(())
}

fn owners(all_root: bool) -> Owners {
    if all_root { Owners::all_root() } else { Owners::default() }
}

fn cp_in(CpIn { all_root, source, path }: CpIn, root: &Dir, _: &mut dyn Write) -> Result<(), CliError> {
    let owners = owners(all_root);
    let is_folder = source.is_dir();
    if is_folder {
        root.create_dir_all(&path).map_err(said)?;
        let top = root.open_dir(&path).map_err(said)?;
        let mut target = FilesystemTarget::new(&top, &owners);
        FolderSource::new(&source).read(&mut target)?;
        return Ok(target.finish()?);
    }
    let mut target = FilesystemTarget::new(root, &owners);
    FolderSource::read_one(&source, path.as_os_str().as_bytes(), &mut target)?;
    Ok(target.finish()?)
}

fn cp_out(CpOut { path, target }: CpOut, root: &Dir, _: &mut dyn Write) -> Result<(), CliError> {
    let is_folder = root.symlink_metadata(&path).map_err(said)?.is_dir();
    if is_folder {
        let mut host = HostTarget::new(target);
        FilesystemSource::new("the image", root.open_dir(&path).map_err(said)?).read(&mut host)?;
        return finish(host);
    }
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = target.file_name().ok_or_else(|| CliError::usage("the target has no name"))?;
    let mut host = HostTarget::new(folder);
    FilesystemSource::new("the image", root.clone()).read_one(&path, name.as_bytes(), &mut host)?;
    finish(host)
}

fn finish(host: HostTarget) -> Result<(), CliError> {
    for device in host.finish()? {
        crate::report::warn(&format!("the device {} is left out: only root can make it", device.escape_ascii()));
    }
    Ok(())
}

fn tar_in(TarIn { all_root, path, archive }: TarIn, root: &Dir, _: &mut dyn Write) -> Result<(), CliError> {
    let owners = owners(all_root);
    root.create_dir_all(&path).map_err(said)?;
    let top = root.open_dir(&path).map_err(said)?;
    let mut target = FilesystemTarget::new(&top, &owners);
    let mut source = TarSource::open(&archive)?;
    source.read(&mut target)?;
    Ok(target.finish()?)
}

fn tar_out(TarOut { path }: TarOut, root: &Dir, out: &mut dyn Write) -> Result<(), CliError> {
    let mut target = TarTarget::new(BufWriter::with_capacity(1 << 20, out));
    FilesystemSource::new("the image", root.open_dir(&path).map_err(said)?).read(&mut target)?;
    for socket in target.finish()? {
        crate::report::warn(&format!("the socket {} is left out: archives have none", socket.escape_ascii()));
    }
    Ok(())
}

fn mkdir(Mkdir { parents, mode, path }: Mkdir, root: &Dir, _: &mut dyn Write) -> Result<(), CliError> {
    if !parents {
        return root.create_dir_with(&path, Mode::new(mode)).map_err(said);
    }
    let is_new = root.symlink_metadata(&path).is_err();
    root.create_dir_all(&path).map_err(said)?;
    if is_new {
        root.node(&path, Follow::Nothing).and_then(|it| it.set_mode(Mode::new(mode))).map_err(said)
    } else {
        Ok(())
    }
}

fn rm(verb: Rm, root: &Dir, _: &mut dyn Write) -> Result<(), CliError> {
    remove(&verb, root).map_err(said)
}

fn remove(Rm { recursive, paths }: &Rm, root: &Dir) -> butterfs::Result<()> {
    paths.iter().try_for_each(|path| {
        let is_folder = root.symlink_metadata(path)?.is_dir();
        if is_folder && *recursive { root.remove_dir_all(path) } else { root.remove_file(path) }
    })
}

// The verb, with a way for images that have no room to do it at once.
#[derive(clap::Args, Debug)]
pub struct RmArgs {
    #[command(flatten)]
    place: Root,
    #[command(flatten)]
    verb: Rm,
}

impl Run for RmArgs {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        let filesystem = self.place.open(Access::ReadWrite)?;
        let root = self.place.root(&filesystem)?;
        match filesystem.transaction(|_| remove(&self.verb, &root)) {
            // Piece by piece, it gives back room as it goes on.
            Err(error) if error.kind() == butterfs::ErrorKind::NoSpace => remove(&self.verb, &root).map_err(said)?,
            done => done.map_err(said)?,
        }
        filesystem.close().map_err(said)
    }
}

fn mv(Mv { from, to }: Mv, root: &Dir, _: &mut dyn Write) -> Result<(), CliError> {
    root.rename(from, to, Rename::Replace).map_err(said)
}

fn ln(Ln { symbolic, target, path }: Ln, root: &Dir, _: &mut dyn Write) -> Result<(), CliError> {
    if symbolic { root.symlink(target, path) } else { root.hard_link(target, path) }.map_err(said)
}

fn chmod(Chmod { mode, path }: Chmod, root: &Dir, _: &mut dyn Write) -> Result<(), CliError> {
    root.node(path, Follow::Links).and_then(|node| node.set_mode(Mode::new(mode))).map_err(said)
}

fn chown(Chown { owner, path }: Chown, root: &Dir, _: &mut dyn Write) -> Result<(), CliError> {
    root.node(path, Follow::Nothing).and_then(|node| node.set_owner(owner)).map_err(said)
}

fn setfattr(Setfattr { remove, value, name, path }: Setfattr, root: &Dir, _: &mut dyn Write) -> Result<(), CliError> {
    let node = root.node(path, Follow::Nothing).map_err(said)?;
    if remove { node.remove_xattr(name) } else { node.set_xattr(name, value.as_bytes()) }.map_err(said)
}
