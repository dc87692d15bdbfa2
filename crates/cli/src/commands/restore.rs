//! `butterfs restore`: files of a filesystem that does not mount, into a directory, a tar stream or a new image.
//! Grammar and text of what btrfs-progs has are its own.

mod opening;
mod roots;
mod telling;

pub use opening::{Source, ddrescue};

use super::Run;
use super::inspect_internal::number;
use crate::error::{CliError, FAILED};
use crate::moments;
use crate::output::{Format, json};
use crate::report;
use butterfs_ondisk::TreeId;
use butterfs_rescue::restore::{Event, Restorer, Selection, Summary, Wanted};
use butterfs_rescue::roots::{Roots, Source as RootSource, last_change, root_trees};
use butterfs_rescue::sink::{Directory, Image, Shared, Sink, Tar};
use butterfs_rescue::tree::{Root, Tree};
use butterfs_rescue::undelete::{self, Deleted};
use butterfs_rescue::{Wreck, restore::ROOT_DIRECTORY};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use telling::Teller;

const EXIT_CODES: &str = "Exit codes: 0 everything was restored as the last commit had it, 1 failure, or something is \
                          missing, doubtful or of an older state, 2 the command line makes no sense";

/// Restore files from a filesystem that does not mount. Nothing is written to its devices.
///
/// Files that fit their checksums are told apart from those that do not: the last line counts both, and each file
/// that is damaged, comes from a damaged or older tree block, or is partly guessed is named with the reason. Without
/// -x, -m and -S extended attributes, owners and times, and symbolic links are left out, as btrfs restore does; --all
/// takes everything.
#[derive(clap::Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct Args {
    /// Only list what would be restored
    #[arg(short = 'D', long)]
    dry_run: bool,
    /// Go on after errors
    #[arg(short = 'i', long)]
    ignore_errors: bool,
    /// Replace existing files
    #[arg(short = 'o', long)]
    overwrite: bool,
    /// Restore owner, mode and times
    #[arg(short = 'm', long)]
    metadata: bool,
    /// Restore symbolic links
    #[arg(short = 'S', long)]
    symlink: bool,
    /// Restore snapshots too
    #[arg(short = 's', long)]
    snapshots: bool,
    /// Restore extended attributes
    #[arg(short = 'x', long)]
    xattr: bool,
    /// Everything: -x -m -S -s -i, hard links as links, devices and FIFOs, and files without a directory
    #[arg(short = 'a', long)]
    all: bool,
    /// Name each restored file; twice also finished directories
    #[arg(short = 'v', long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Restore only paths that match, every level of them: '^/(|home(|/user(|/.*)))$'
    #[arg(long, value_name = "REGEX")]
    path_regex: Option<String>,
    /// Ignore case in --path-regex
    #[arg(short = 'c')]
    ignore_case: bool,
    /// Restore only this path and everything below it
    #[arg(long, value_name = "PATH", conflicts_with = "path_regex")]
    path: Option<String>,
    /// Begin at the first directory that is found, where the top directory is lost
    #[arg(short = 'd')]
    find_dir: bool,
    /// List the roots of all trees
    #[arg(short = 'l', long)]
    list_roots: bool,
    /// The subvolume's tree begins at this address
    #[arg(short = 'f', value_name = "BYTENR", value_parser = number)]
    fs_location: Option<u64>,
    /// Restore the subvolume with this number
    #[arg(short = 'r', long = "root", value_name = "ROOTID", value_parser = number)]
    root_id: Option<u64>,
    /// The root tree begins at this address
    #[arg(short = 't', value_name = "BYTENR", value_parser = number)]
    tree_location: Option<u64>,
    /// Restore the state of this generation, or the newest before it that is left
    #[arg(long, value_name = "GENERATION")]
    generation: Option<u64>,
    /// Restore the state of this time, such as '2026-11-27 10:00', or the newest before it that is left
    #[arg(long, value_name = "TIME", value_parser = moments::seconds, allow_negative_numbers = true,
          conflicts_with = "generation")]
    time: Option<i64>,
    /// Believe this copy of the superblock: 0 at 64 KiB, 1 at 64 MiB, 2 at 256 GiB
    #[arg(short = 'u', long = "super", value_name = "MIRROR", value_parser = number)]
    super_copy: Option<u64>,
    #[command(flatten)]
    source: Source,
    /// Leave out files and links of which something is damaged, missing, doubtful or of an older state
    #[arg(long)]
    whole: bool,
    /// Restore at most so many bytes
    #[arg(long, value_name = "BYTES", value_parser = number)]
    most: Option<u64>,
    /// Restore into a tar stream; '-' is standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["image", "overwrite"])]
    tar: Option<PathBuf>,
    /// Restore into a new filesystem in this file
    #[arg(long, value_name = "FILE", conflicts_with = "overwrite")]
    image: Option<PathBuf>,
    /// List deleted files that are still there, newest first, and how complete each is; with a path, restore them
    #[arg(long)]
    deleted: bool,
    /// Of deleted files only those whose name matches, such as '*.jpg'
    #[arg(long, value_name = "PATTERN", requires = "deleted")]
    name: Option<String>,
    /// Of deleted files only those with this kind of content: jpeg, png, pdf, zip, text and so on
    #[arg(long, value_name = "TYPE", requires = "deleted")]
    content: Option<String>,
    /// The devices of the filesystem, as many as there are, and the directory to restore into
    #[arg(required = true, value_name = "DEVICE... PATH")]
    places: Vec<PathBuf>,
}

/// The advice where a root cannot be read and no scan stands behind the source.
const SCAN: &str = "'butterfs rescue scan DEVICE --map FILE' finds what is left of it, and '--map FILE' uses that";

/// How much an image has room for beside what the source used.
const IMAGE_ROOM: u64 = 256 << 20;

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        self.run_as(Format::Text, out)
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        let (devices, target) = self.places()?;
        if self.dry_run && format == Format::Text {
            writeln!(out, "This is a dry-run, no files are going to be restored")?;
        }
        let wreck = self.source.open(&devices, self.super_copy)?;
        wreck.notes.iter().chain(&wreck.cautions).for_each(|note| report::warn(note));
        if self.list_roots {
            return roots::list(&wreck, self.root_tree(&wreck)?, format, out);
        }
        let roots = self.roots(&wreck)?;
        if self.deleted {
            return self.undelete(&wreck, &roots, target, format, out);
        }
        if self.source.leaves_log(&wreck) {
            report::warn("the last commit is restored; what was synced after it is in the log: --with-log");
        }
        let (tree, top) = self.begin(&wreck, &roots)?;
        let mut summary = self.restore(&wreck, target, format, out, |sink, tell| {
            self.restore_once((&wreck, &roots), sink, tell, |restorer| restorer.run(tree, top))
        })?;
        self.conclude(&mut summary, format, out)
    }
}

impl Args {
    /// The devices, and where to restore to.
    fn places(&self) -> Result<(Vec<PathBuf>, Option<PathBuf>), CliError> {
        let mut devices = self.places.clone();
        let needs_none = self.list_roots || self.tar.is_some() || self.image.is_some();
        if needs_none || (self.deleted && devices.len() == 1) {
            return Ok((devices, None));
        }
        let target = devices.pop();
        if devices.is_empty() {
            return Err(CliError::usage("not enough arguments: 1 but at least 2 expected"));
        }
        Ok((devices, target))
    }

    fn root_tree(&self, wreck: &Wreck) -> Result<Option<(Root, RootSource)>, CliError> {
        if let Some(at) = self.tree_location {
            let root = Root { tree: TreeId::ROOT, at, level: None, generation: None };
            return Ok(Some((root, RootSource::Asked)));
        }
        let (is_old_enough, what): (Box<dyn Fn(&Root) -> bool>, _) = match (self.generation, self.time) {
            (Some(wanted), _) => {
                let is_older = move |root: &Root| root.generation.is_some_and(|own| own <= wanted);
                (Box::new(is_older), format!("generation {wanted}"))
            }
            (_, Some(wanted)) => {
                let is_older = move |root: &Root| last_change(wreck, *root).is_some_and(|own| own <= wanted);
                (Box::new(is_older), "that time".to_owned())
            }
            _ => return Ok(None),
        };
        let known = root_trees(wreck);
        let readable = known.iter().filter(|(root, _)| Tree::new(wreck, *root).has_root());
        let newest = readable.filter(|(root, _)| is_old_enough(root)).max_by_key(|(root, _)| root.generation);
        let none = || CliError::failed(format!("no root tree of {what} or before is left"));
        newest.copied().map(Some).ok_or_else(none)
    }

    /// The trees to restore from.
    fn roots(&self, wreck: &Wreck) -> Result<Roots, CliError> {
        let mut roots = self.named_roots(wreck)?;
        if let Some(at) = self.fs_location {
            let (tree, root) = Roots::at(wreck, at).ok_or_else(|| CliError::failed("failed to read fs location"))?;
            // It stands for the subvolume that is restored, whatever tree it was.
            let wanted = TreeId(self.root_id.unwrap_or(tree.0));
            roots.trees.insert(wanted, root);
        }
        Ok(roots)
    }

    fn named_roots(&self, wreck: &Wreck) -> Result<Roots, CliError> {
        let Some((root, _)) = self.root_tree(wreck)? else { return Ok(Roots::assemble(wreck)) };
        if !Tree::new(wreck, root).has_root() {
            return Err(CliError::failed(format!("there is no root tree at {}", root.at)));
        }
        if let Some(generation) = root.generation.filter(|_| self.generation.is_some() || self.time.is_some()) {
            report::warn(&format!("restoring generation {generation}"));
        }
        // The state that is asked for is no older one than is wanted.
        Ok(Roots::of(wreck, root, RootSource::Asked))
    }

    /// The subvolume and the directory to begin with.
    fn begin(&self, wreck: &Wreck, roots: &Roots) -> Result<(TreeId, u64), CliError> {
        let located = self.fs_location.and_then(|at| Roots::at(wreck, at)).map(|(tree, _)| tree);
        let tree = self.root_id.map(TreeId).or(located).unwrap_or(TreeId::FS);
        let Some(root) = roots.trees.get(&tree) else {
            let error = CliError::failed(format!("failed to read root {tree}: No such file or directory"));
            return Err(if wreck.index().is_some() { error } else { error.hint(SCAN) });
        };
        let view = Tree::new(wreck, root.root);
        // Other subvolumes may be sound.
        let has_others = self.all && tree == TreeId::FS && roots.subvolumes().count() > 1;
        if !view.has_root() && root.root.at != 0 && wreck.index().is_none() && !has_others {
            let error = CliError::failed(format!("the root of tree {tree} at {} cannot be read", root.root.at));
            return Err(error.hint(SCAN));
        }
        if !self.find_dir {
            return Ok((tree, ROOT_DIRECTORY));
        }
        let first = butterfs_rescue::subvolume::first_directory(&view);
        let first = first.ok_or_else(|| CliError::failed("no directory was found"))?;
        report::line(&format!("Using objectid {first} for first dir"));
        Ok((tree, first))
    }

    fn wanted(&self) -> Wanted {
        let all = self.all || self.tar.is_some() || self.image.is_some();
        Wanted {
            metadata: self.metadata || all,
            xattrs: self.xattr || all,
            symlinks: self.symlink || all,
            snapshots: self.snapshots || self.all,
            special: all,
            hard_links: all,
            orphans: self.all || self.source.has_map(),
            ignore_errors: self.ignore_errors || self.all,
            whole_files_only: self.whole,
            dry_run: self.dry_run,
            most_bytes: self.most,
        }
    }

    fn selection(&self) -> Result<Selection, CliError> {
        match (&self.path_regex, &self.path) {
            (Some(pattern), _) => Selection::default()
                .matching(pattern, self.ignore_case)
                .map_err(|error| CliError::failed(format!("regex compilation failed: {error}"))),
            (None, Some(path)) => Ok(Selection::default().below(path.as_bytes())),
            (None, None) => Ok(Selection::default()),
        }
    }

    fn sink<'a>(
        &self,
        wreck: &Wreck,
        target: Option<&PathBuf>,
        tar: &'a mut Option<Box<dyn Write>>,
    ) -> Result<Box<dyn Sink + 'a>, CliError> {
        if let Some(path) = &self.image {
            let len = wreck.superblock().total_bytes.get().max(wreck.devices().iter().map(|device| device.len()).sum());
            return Ok(Box::new(Image::create(path, len.saturating_add(IMAGE_ROOM)).map_err(CliError::failed)?));
        }
        if let Some(out) = tar {
            return Ok(Box::new(Tar::new(out)));
        }
        let path = target.ok_or_else(|| CliError::usage("a directory to restore into is missing"))?;
        let opened = Directory::open(path, self.overwrite);
        let opened = opened.map_err(|error| CliError::failed(format!("cannot open {}: {error}", path.display())))?;
        let names: Vec<String> = wreck.devices().iter().map(|device| device.name()).collect();
        let read = names.iter().map(Path::new).chain(self.source.maps());
        Ok(Box::new(opened.sparing(read.flat_map(butterfs_device::files_of).collect())))
    }

    fn is_to_stdout(&self) -> bool {
        self.tar.as_ref().is_some_and(|path| path.as_os_str() == "-")
    }

    /// Opens the target and has `run` restore into it, once or several times.
    fn restore(
        &self,
        wreck: &Wreck,
        target: Option<PathBuf>,
        format: Format,
        out: &mut dyn Write,
        run: impl FnOnce(&mut dyn Sink, &mut dyn FnMut(Event<'_>)) -> Result<Summary, CliError>,
    ) -> Result<Summary, CliError> {
        let to_stdout = self.is_to_stdout();
        let mut stream: Option<Box<dyn Write>> = match &self.tar {
            None => None,
            Some(_) if to_stdout => Some(Box::new(BufWriter::new(std::io::stdout()))),
            Some(path) => {
                let file = std::fs::File::create_new(path);
                let file =
                    file.map_err(|error| CliError::failed(format!("cannot create {}: {error}", path.display())))?;
                Some(Box::new(BufWriter::with_capacity(1 << 20, file)))
            }
        };
        let shown = target.as_ref().map_or(String::new(), |path| path.display().to_string());
        let is_silent = format == Format::Json || to_stdout;
        let mut teller = Teller::new(out, shown, if is_silent { 0 } else { self.verbose }, is_silent);
        let mut sink: Box<dyn Sink> = match self.dry_run {
            true => Box::new(Tar::new(std::io::sink())),
            false => self.sink(wreck, target.as_ref(), &mut stream)?,
        };
        let ran = run(&mut *sink, &mut |event| teller.tell(&event));
        let finished = sink.finish();
        sink.complaints().iter().for_each(|sentence| report::warn(sentence));
        teller.end()?;
        let mut summary = ran?;
        summary.ended = summary.ended.or(finished.err().map(|error| error.to_string()));
        Ok(summary)
    }

    /// Restores from one state.
    fn restore_once(
        &self,
        (wreck, roots): (&Wreck, &Roots),
        sink: &mut dyn Sink,
        tell: &mut dyn FnMut(Event<'_>),
        run: impl FnOnce(Restorer<'_>) -> std::io::Result<Summary>,
    ) -> Result<Summary, CliError> {
        let mut sink = Shared(sink);
        run(Restorer::new(wreck, roots, self.wanted(), self.selection()?, &mut sink, tell)).map_err(failed)
    }

    /// Says what was restored, where that is not everything or somebody wants to know.
    fn conclude(&self, summary: &mut Summary, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        summary.conclude();
        if let Some(error) = &summary.ended {
            report::error(error);
        }
        if format == Format::Json && !self.is_to_stdout() {
            json(out, "restore", summary)?;
        }
        let is_wanted = self.all || self.verbose > 0 || !summary.complete || self.deleted;
        if format == Format::Text && is_wanted {
            report::line(&telling::summary(summary));
        }
        if !summary.older_states.is_empty() && !self.source.has_map() {
            report::line("'butterfs rescue scan DEVICE --map FILE' finds newer states, and '--map FILE' uses them");
        }
        out.flush()?;
        if summary.complete { Ok(()) } else { Err(CliError::Reported { code: FAILED }) }
    }

    fn undelete(
        &self,
        wreck: &Wreck,
        roots: &Roots,
        target: Option<PathBuf>,
        format: Format,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let wanted = undelete::Wanted {
            name: self.name.clone(),
            content: self.content.clone(),
            subvolume: self.root_id.map(TreeId),
        };
        let found = undelete::find(wreck, roots, &wanted).map_err(|error| CliError::failed(error.to_string()))?;
        if target.is_none() && self.tar.is_none() && self.image.is_none() {
            return telling::deleted(&found, format, out);
        }
        let mut total = self.restore(wreck, target, format, out, |sink, tell| {
            let mut total = Summary::default();
            for group in undelete::groups(&found) {
                let inodes: Vec<u64> = group.iter().map(|one: &&Deleted| one.ino).collect();
                let (moment, tree) = (undelete::moment(roots, group[0]), group[0].tree);
                let run = |restorer: Restorer<'_>| restorer.run_inodes(tree, &inodes);
                total.add(&self.restore_once((wreck, &moment), sink, tell, run)?);
                if total.ended.is_some() {
                    break;
                }
            }
            Ok(total)
        })?;
        self.conclude(&mut total, format, out)
    }
}

fn failed(error: std::io::Error) -> CliError {
    CliError::failed(error.to_string())
}
