//! The tables of docs/ondisk.md, used to find a file's contents in an image: nothing here knows an offset.

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::{Caller, Env, Filesystem, Options};
use butterfs_ondisk::layout::{STRUCTURES, Structure};
use butterfs_testkit::engine::FORMATS;
use std::collections::HashMap;
use std::sync::Arc;

const DOCUMENT: &str = include_str!("../../../docs/ondisk.md");
const BYTES: u64 = 256 << 20;
/// The offset of the first copy of the superblock.
const SUPERBLOCK: usize = 64 << 10;

/// The structures of the document: name, then field, then offset and size.
struct Tables(HashMap<String, HashMap<String, (usize, usize)>>);

impl Tables {
    fn read(document: &str) -> Tables {
        let mut tables: HashMap<String, HashMap<String, (usize, usize)>> = HashMap::new();
        let mut current = String::new();
        for line in document.lines() {
            if let Some(name) = line.strip_prefix("### `") {
                current = name.trim_end_matches('`').to_owned();
            }
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            if let [_, offset, size, field, ..] = cells[..]
                && let (Ok(offset), Ok(size)) = (offset.parse(), size.parse())
            {
                tables.entry(current.clone()).or_default().insert(field.to_owned(), (offset, size));
            }
        }
        Tables(tables)
    }

    fn place(&self, structure: &str, field: &str) -> (usize, usize) {
        let found = self.0.get(structure).and_then(|fields| fields.get(field));
        *found.unwrap_or_else(|| panic!("the document has no {structure}.{field}"))
    }

    /// The bytes of the last field's end.
    fn len(&self, structure: &str) -> usize {
        self.0[structure].values().map(|(offset, size)| offset + size).max().expect("a table has rows")
    }

    fn bytes<'a>(&self, of: &'a [u8], structure: &str, field: &str) -> &'a [u8] {
        let (offset, size) = self.place(structure, field);
        &of[offset..offset + size]
    }

    fn number(&self, of: &[u8], structure: &str, field: &str) -> u64 {
        let bytes = self.bytes(of, structure, field);
        bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    fn key(&self, of: &[u8]) -> (u64, u64, u64) {
        (self.number(of, "key", "objectid"), self.number(of, "key", "type"), self.number(of, "key", "offset"))
    }
}

/// An image, read by what the document says.
struct Walk {
    tables: Tables,
    image: Vec<u8>,
    /// Logical start, length, and where the first stripe begins.
    chunks: Vec<(u64, u64, u64)>,
}

type Item = ((u64, u64, u64), Vec<u8>);

impl Walk {
    fn begin(image: Vec<u8>) -> Walk {
        let mut walk = Walk { tables: Tables::read(DOCUMENT), image, chunks: Vec::new() };
        let superblock = walk.superblock().to_vec();
        assert_eq!(walk.tables.bytes(&superblock, "superblock", "magic"), b"_BHRfS_M");
        let used = walk.number(&superblock, "superblock", "sys_chunk_array_size") as usize;
        let mut array = walk.tables.bytes(&superblock, "superblock", "sys_chunk_array")[..used].to_vec();
        while !array.is_empty() {
            let key = walk.tables.key(&array);
            let chunk = array.split_off(walk.tables.len("key"));
            array = chunk[walk.enter_chunk(key.2, &chunk)..].to_vec();
        }
        let root = walk.number(&superblock, "superblock", "chunk_root");
        for (key, chunk) in walk.leaf_items(root).into_iter().filter(|(key, _)| key.1 == 228) {
            walk.enter_chunk(key.2, &chunk);
        }
        walk
    }

    fn superblock(&self) -> &[u8] {
        &self.image[SUPERBLOCK..SUPERBLOCK + 4096]
    }

    fn number(&self, of: &[u8], structure: &str, field: &str) -> u64 {
        self.tables.number(of, structure, field)
    }

    /// Remembers a chunk; returns its bytes with all stripes.
    fn enter_chunk(&mut self, start: u64, chunk: &[u8]) -> usize {
        let stripe = &chunk[self.tables.len("chunk")..];
        self.chunks.push((start, self.number(chunk, "chunk", "length"), self.number(stripe, "stripe", "offset")));
        let stripes = self.number(chunk, "chunk", "num_stripes") as usize;
        self.tables.len("chunk") + stripes * self.tables.len("stripe")
    }

    fn at(&self, logical: u64, len: usize) -> &[u8] {
        let found = self.chunks.iter().find(|(start, length, _)| (*start..start + length).contains(&logical));
        let (start, _, physical) = found.unwrap_or_else(|| panic!("no chunk holds {logical}"));
        let at = (physical + logical - start) as usize;
        &self.image[at..at + len]
    }

    fn block(&self, at: u64) -> &[u8] {
        let block = self.at(at, self.number(self.superblock(), "superblock", "nodesize") as usize);
        assert_eq!(self.number(block, "header", "bytenr"), at);
        let (_, csum) = self.tables.place("header", "csum");
        assert_eq!(block[..4], crc32c::crc32c(&block[csum..]).to_le_bytes(), "checksum of the block at {at}");
        block
    }

    /// All items of a tree, in order.
    fn leaf_items(&self, root: u64) -> Vec<Item> {
        let block = self.block(root);
        let body = &block[self.tables.len("header")..];
        let count = self.number(block, "header", "nritems") as usize;
        if self.number(block, "header", "level") > 0 {
            let pointers = body.chunks(self.tables.len("key_ptr")).take(count);
            return pointers.flat_map(|p| self.leaf_items(self.number(p, "key_ptr", "blockptr"))).collect();
        }
        let item = |head: &[u8]| {
            let (at, len) = (self.number(head, "item", "offset") as usize, self.number(head, "item", "size") as usize);
            (self.tables.key(head), body[at..at + len].to_vec())
        };
        body.chunks(self.tables.len("item")).take(count).map(item).collect()
    }

    /// The items of the tree with this id.
    fn tree(&self, id: u64) -> Vec<Item> {
        let roots = self.leaf_items(self.number(self.superblock(), "superblock", "root"));
        let (_, root) = roots.iter().find(|(key, _)| (key.0, key.1) == (id, 132)).expect("a root item");
        assert_eq!(root.len(), self.tables.len("root_item"));
        self.leaf_items(self.number(root, "root_item", "bytenr"))
    }

    /// The contents of a file in the top-level directory.
    fn contents(&self, name: &[u8]) -> Vec<u8> {
        let tree = self.tree(5);
        let find = |key| &tree.iter().find(|(found, _)| *found == key).unwrap_or_else(|| panic!("no item {key:?}")).1;
        // crc32c with the start value 0xfffffffe, without the final inversion.
        let hash = !crc32c::crc32c_append(!0xffff_fffe, name);
        let entry = find((256, 84, u64::from(hash)));
        assert!(entry.ends_with(name));
        assert_eq!(self.number(entry, "dir_item", "name_len"), name.len() as u64);
        let (ino, kind, _) = self.tables.key(self.tables.bytes(entry, "dir_item", "location"));
        assert_eq!((kind, self.number(entry, "dir_item", "type")), (1, 1));
        let inode = find((ino, 1, 0));
        assert_eq!(inode.len(), self.tables.len("inode_item"));
        let extent = find((ino, 108, 0));
        assert_eq!(self.number(extent, "file_extent_item", "type"), 1);
        let (at, len) = (
            self.number(extent, "file_extent_item", "disk_bytenr"),
            self.number(extent, "file_extent_item", "num_bytes") as usize,
        );
        self.compare_checksums(at, len);
        self.at(at, len)[..self.number(inode, "inode_item", "size") as usize].to_vec()
    }

    fn compare_checksums(&self, at: u64, len: usize) {
        let checksums = self.tree(7);
        let (_, sums) = checksums.iter().find(|(key, _)| *key == (-10i64 as u64, 128, at)).expect("checksums");
        let computed = self.at(at, len).chunks(4096).flat_map(|sector| crc32c::crc32c(sector).to_le_bytes());
        assert_eq!(*sums, computed.collect::<Vec<u8>>());
    }
}

fn image_with(name: &[u8], contents: &[u8]) -> Vec<u8> {
    let device = Arc::new(MemoryDevice::new(BYTES));
    let shared: Arc<dyn BlockDevice> = device.clone();
    FORMATS[0].make(&shared);
    let filesystem =
        Filesystem::open(vec![shared.clone()], Options::default(), Env::system()).expect("it was just made");
    let file = filesystem.create(&Caller::default(), filesystem.root(), name, 0o644).expect("there is room");
    filesystem.write(file.id, 0, contents, false).expect("there is room");
    filesystem.shutdown().expect("memory takes everything");
    let mut image = vec![0; BYTES as usize];
    shared.read_at(0, &mut image).expect("memory can be read");
    image
}

#[test]
fn a_file_is_found_by_the_tables_of_the_document() {
    let contents: Vec<u8> = (0..5000u32).map(|n| (n * 7 % 251) as u8).collect();
    let walk = Walk::begin(image_with(b"large", &contents));
    assert_eq!(walk.contents(b"large"), contents);
    let superblock = walk.superblock();
    let covered = &superblock[walk.tables.place("superblock", "csum").1..];
    assert_eq!(superblock[..4], crc32c::crc32c(covered).to_le_bytes());
    assert_eq!(walk.tables.len("dev_item"), walk.tables.place("superblock", "dev_item").1);
}

#[test]
fn items_have_the_documents_sizes() {
    let walk = Walk::begin(image_with(b"large", &[1; 5000]));
    let sizes = [(4, 204, "dev_extent"), (11, 192, "block_group_item"), (10, 198, "free_space_info")];
    for (tree, kind, structure) in sizes {
        let items = walk.tree(tree);
        let (_, item) = items.iter().find(|(key, _)| key.1 == kind).expect("there is one");
        assert_eq!(item.len(), walk.tables.len(structure), "{structure}");
    }
    let extents = walk.tree(2);
    let (_, data) = extents.iter().find(|(key, _)| key.1 == 168).expect("the file's extent");
    assert_eq!(walk.number(data, "extent_item", "refs"), 1);
}

/// Tables that a typing error would make silently incomplete.
#[test]
fn every_table_has_no_gap() {
    let tables = Tables::read(DOCUMENT);
    assert_eq!(tables.0.len(), 29);
    for (name, fields) in &tables.0 {
        let mut places: Vec<(usize, usize)> = fields.values().copied().collect();
        places.sort_unstable();
        // The superblock has reserved bytes before its array.
        let gaps = places.windows(2).filter(|pair| pair[0].0 + pair[0].1 != pair[1].0).count();
        assert_eq!(gaps, usize::from(name == "superblock"), "{name}");
        assert_eq!(places[0].0, 0, "{name}");
    }
}

/// Names of structures in the document and in the code, where they differ in more than case.
const NAMES: [(&str, &str); 6] = [
    ("chunk", "ChunkHead"),
    ("key_ptr", "KeyPointer"),
    ("item", "ItemHeader"),
    ("qgroup_status", "QgroupStatus"),
    ("file_extent_item", "FileExtent"),
    ("key", "DiskKey"),
];

/// Names of fields in the code and in the document, where they differ.
const FIELDS: [(&str, &str); 3] = [("kind", "type"), ("blocknr", "blockptr"), ("num_items", "nritems")];

/// Bytes of the superblock that stand in no row.
const UNUSED: [&str; 3] = ["nr_global_roots", "reserved", "padding"];

fn in_code(name: &str) -> String {
    match NAMES.iter().find(|(documented, _)| *documented == name) {
        Some((_, name)) => (*name).to_owned(),
        None => name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect(),
    }
}

/// Offset and size of each field of a structure. Fields of a field are not told apart, but for the two halves of a file
/// extent, which the document shows as one.
fn fields_of(structure: &Structure) -> HashMap<String, (usize, usize)> {
    let mut places: HashMap<String, (usize, usize)> = HashMap::new();
    for field in (structure.fields)() {
        let name = field.name.strip_prefix("head.").or(field.name.strip_prefix("body.")).unwrap_or(&field.name);
        let name = name.split(['.', '[']).next().unwrap_or(name);
        let name = FIELDS.iter().find(|(code, _)| *code == name).map_or(name, |(_, documented)| documented);
        let len = field.width * field.count;
        places.entry(name.to_owned()).and_modify(|place| place.1 += len).or_insert((field.at, len));
    }
    places
}

#[test]
fn every_table_is_the_structure_of_the_code() {
    for (name, documented) in &Tables::read(DOCUMENT).0 {
        let in_code = in_code(name);
        let structure = STRUCTURES.iter().find(|structure| structure.name == in_code);
        let Some(structure) = structure else {
            assert_eq!(name, "key", "no structure is called {in_code}");
            continue;
        };
        let mut declared = fields_of(structure);
        declared.retain(|field, _| name != "superblock" || !UNUSED.contains(&field.as_str()));
        assert_eq!(*documented, declared, "{name}");
    }
}
