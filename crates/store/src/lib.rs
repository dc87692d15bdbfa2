//! Internal to butterfs: this crate promises no stability. Depend on the crate `butterfs` instead.
//!
//! Object stores for programs that block: S3, Google Cloud Storage, Azure, HTTP servers (read-only), plain folders and
//! memory, each as a [`Store`]: a bucket and a prefix below which keys are.
//!
//! ```
//! use butterfs_store::{Kind, Settings, Store};
//!
//! # fn main() -> Result<(), butterfs_store::Error> {
//! let store = Store::in_memory(); // or Store::open("s3://bucket/prefix", &Settings::from_vars(std::env::vars()))?
//! let version = store.create("root", b"1".to_vec())?;
//! assert_eq!(store.create("root", b"2".to_vec()).unwrap_err().kind(), Kind::Exists);
//! let next = store.replace("root", b"2".to_vec(), &version)?;
//! assert_eq!(store.replace("root", b"3".to_vec(), &version).unwrap_err().kind(), Kind::Conflict);
//! assert_eq!(&store.get("root", 1 << 20)?.bytes[..], b"2");
//! assert_eq!(&store.get_range("root", 0..1)?[..], b"2");
//! assert_eq!(store.list("")?.len(), 1);
//! # let _ = next;
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//! 1. Every call retries what may pass (a refused connection, an answer of 5xx or 429, a body that ends early) with
//!    exponential backoff and jitter until [`Settings::give_up_after`]; then the error says what failed last. No call
//!    takes longer than that, 5 seconds and the time of its bytes at 64 KiB/s, however the store behaves.
//! 2. A conditional put whose answer was lost is not ambiguous to the caller: when the store says that the object is
//!    there already, it is read back, and equal bytes are success. So bytes of [`Store::replace`] must differ for each
//!    writer and each attempt (a counter and the writer's id).
//! 3. A range that is returned has exactly the length that was asked for; a body is never longer than the caller
//!    allows.
//! 4. An acknowledged put into a folder is on its disk: the file and its directory are synced.
//! 5. Errors are one sentence that names store, key and rule, with a [`Kind`] and an errno.
//!
//! Calls may come from many threads at once; each blocks its own. A runtime of two threads inside drives the requests.
//! No call may come from a thread of an asynchronous runtime. [`Store::object_store`] and [`Store::runtime`] are for
//! work that this front does not offer.

#![forbid(unsafe_code)]

mod attempts;
mod buffers;
mod cancel;
mod error;
mod folder;
mod parallel;
mod profile;
mod settings;
mod store;
mod url;

pub use cancel::Cancel;
pub use error::{Error, Kind, Result};
pub use object_store::{PutPayload, PutPayloadMut};
pub use parallel::each;
pub use settings::Settings;
pub use store::{Entry, Object, Seen, Store, Version};
