//! Nanoseconds per operation on a tree in memory: `cargo run --release -p butterfs-tree --example throughput [items]`.
//!
//! The store is a plain hash map without locks, so this is the cost of the tree code itself.

use butterfs_ondisk::{ChecksumKind, Generation, Key, KeyType, Level, Logical, TreeId};
use butterfs_testkit::rng::Rng;
use butterfs_tree::{self as tree, BlockIdentity, Corrupt, Node, NodeEditor, NodePtr, NodeSource};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const TREE: TreeId = TreeId(256);
const NODESIZE: u32 = 16384;
const ITEM: [u8; 160] = [0x5a; 160];

struct Store {
    identity: BlockIdentity,
    nodes: RefCell<FxHashMap<Logical, Arc<Node>>>,
    generation: Cell<Generation>,
    next_at: Cell<u64>,
}

impl Store {
    fn new() -> Store {
        let identity = BlockIdentity {
            fsid: [7; 16],
            seeds: Default::default(),
            chunk_tree_uuid: [8; 16],
            checksum: ChecksumKind::Crc32c,
            nodesize: NODESIZE,
            sectorsize: 4096,
            incompat: 0,
            super_generation: Generation(1000),
            ignores_checksums: false,
            writable: true,
        };
        Store {
            identity,
            nodes: RefCell::default(),
            generation: Cell::new(Generation(10)),
            next_at: Cell::new(u64::from(NODESIZE)),
        }
    }

    fn empty_root(&self) -> NodePtr {
        let at = self.new_node(Level(0)).expect("space");
        NodePtr { at, generation: self.generation.get(), level: Level(0), tree: TREE, first_key: None }
    }

    fn allocate(&self) -> Logical {
        let at = self.next_at.get();
        self.next_at.set(at + u64::from(NODESIZE));
        Logical(at)
    }
}

impl NodeSource for Store {
    type Error = Corrupt;

    fn nodesize(&self) -> u32 {
        NODESIZE
    }

    fn node(&self, ptr: &NodePtr) -> Result<Arc<Node>, Corrupt> {
        Ok(self.nodes.borrow().get(&ptr.at).expect("a node that exists").clone())
    }
}

impl NodeEditor for Store {
    fn generation(&self) -> Generation {
        self.generation.get()
    }

    fn shadow(&self, node: &Arc<Node>, _is_root: bool) -> Result<Logical, Corrupt> {
        if node.generation() == self.generation.get() {
            return Ok(node.at());
        }
        let mut copy = Node::clone(node);
        copy.set_identity(self.allocate(), self.generation.get(), TREE);
        let at = copy.at();
        let mut nodes = self.nodes.borrow_mut();
        nodes.remove(&node.at());
        nodes.insert(at, Arc::new(copy));
        Ok(at)
    }

    fn new_node(&self, level: Level) -> Result<Logical, Corrupt> {
        let at = self.allocate();
        let node = Node::new_empty(&self.identity, at, level, self.generation.get(), TREE);
        self.nodes.borrow_mut().insert(at, Arc::new(node));
        Ok(at)
    }

    fn edit<R>(&self, at: Logical, change: impl FnOnce(&mut Node) -> R) -> R {
        let mut nodes = self.nodes.borrow_mut();
        change(Arc::get_mut(nodes.get_mut(&at).expect("a node that exists")).expect("nobody else has it"))
    }

    fn take(&self, at: Logical) -> Node {
        Arc::try_unwrap(self.nodes.borrow_mut().remove(&at).expect("a node that exists")).expect("nobody else has it")
    }

    fn put(&self, node: Node) {
        self.nodes.borrow_mut().insert(node.at(), Arc::new(node));
    }

    fn free(&self, at: Logical, _level: Level) {
        self.nodes.borrow_mut().remove(&at);
    }
}

fn key(n: u64) -> Key {
    Key::new(256 + n, KeyType(2), 0)
}

/// A fixed shuffle of 0..count.
fn shuffled(count: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    let mut rng = Rng::new(1);
    for last in (1..order.len()).rev() {
        order.swap(last, rng.index(last + 1));
    }
    order
}

fn time(what: &str, count: u64, mut work: impl FnMut()) {
    let start = Instant::now();
    work();
    println!("{what:<44} {:8.0} ns", start.elapsed().as_nanos() as f64 / count as f64);
}

fn fill(store: &Store, what: &str) {
    let nodes = store.nodes.borrow();
    let leaves: Vec<_> = nodes.values().filter(|node| node.is_leaf()).collect();
    let used: usize = leaves.iter().map(|leaf| leaf.used()).sum();
    let share = 100.0 * used as f64 / (leaves.len() * NODESIZE as usize) as f64;
    println!("{what:<44} {} leaves, {share:.0} % full", leaves.len());
}

fn main() {
    let count: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let order = shuffled(count);

    let store = Store::new();
    let root = &mut store.empty_root();
    time("insert, ascending", count, || {
        for n in 0..count {
            assert!(tree::insert(&store, root, &key(n), &ITEM).unwrap());
        }
    });
    fill(&store, "  ascending");
    time("lookup, random", count, || {
        for &n in &order {
            assert!(black_box(tree::search(&store, root, &key(n)).unwrap()).found);
        }
    });
    time("lookup, ascending", count, || {
        for n in 0..count {
            assert!(black_box(tree::search(&store, root, &key(n)).unwrap()).found);
        }
    });
    time("last before, random", count, || {
        for &n in &order {
            black_box(tree::last_before(&store, root, &key(n)).unwrap());
        }
    });
    time("update, ascending", count, || {
        for n in 0..count {
            tree::update(&store, root, &key(n), |data| data[0] ^= 1).unwrap().unwrap();
        }
    });
    time("update, random", count, || {
        for &n in &order {
            tree::update(&store, root, &key(n), |data| data[0] ^= 1).unwrap().unwrap();
        }
    });
    store.generation.set(store.generation.get().next());
    time("update, ascending, next generation", count, || {
        for n in 0..count {
            tree::update(&store, root, &key(n), |data| data[0] ^= 1).unwrap().unwrap();
        }
    });
    let mut out = vec![0; NODESIZE as usize];
    let nodes = store.nodes.borrow().len() as u64;
    time("seal, per node", nodes, || {
        for node in store.nodes.borrow().values() {
            node.seal_into(&mut out, &store.identity).unwrap();
        }
    });
    time("remove, ascending", count, || {
        for n in 0..count {
            assert!(tree::remove(&store, root, &key(n)).unwrap());
        }
    });

    let store = Store::new();
    let mut root = store.empty_root();
    time("insert, random", count, || {
        for &n in &order {
            assert!(tree::insert(&store, &mut root, &key(n), &ITEM).unwrap());
        }
    });
    fill(&store, "  random");
    time("remove, random", count, || {
        for &n in &order {
            assert!(tree::remove(&store, &mut root, &key(n)).unwrap());
        }
    });

    let store = Store::new();
    let mut root = store.empty_root();
    time("insert, descending", count, || {
        for n in (0..count).rev() {
            assert!(tree::insert(&store, &mut root, &key(n), &ITEM).unwrap());
        }
    });
    fill(&store, "  descending");

    let store = Store::new();
    let mut root = store.empty_root();
    let items: Vec<(Key, &[u8])> = (0..count).map(|n| (key(n), ITEM.as_slice())).collect();
    time("insert many, ascending, 64 at a time", count, || {
        for run in items.chunks(64) {
            assert_eq!(tree::insert_many(&store, &mut root, run).unwrap(), run.len());
        }
    });
    fill(&store, "  64 at a time");
    time("remove range, all", count, || {
        while tree::remove_range(&store, &mut root, &Key::MIN, &Key::MAX, &mut |_, _| Ok(())).unwrap() {}
    });
    time("insert many, ascending, all at once", count, || {
        assert_eq!(tree::insert_many(&store, &mut root, &items).unwrap(), items.len());
    });
    fill(&store, "  all at once");
}
