//! A panic anywhere in the process that serves a mount: nothing more is written from that moment, and the log says
//! where it was. The engine answers requests and wakes
//! waiting threads.

use butterfs_fs::Filesystem;
use butterfs_fuse::Log;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

/// The switches of the filesystems that this process has open.
#[derive(Clone, Default)]
pub struct Halts(Arc<RwLock<Vec<Arc<AtomicBool>>>>);

impl Halts {
    /// From now on a panic stops this one too.
    pub fn add(&self, filesystem: &Filesystem) {
        if let Ok(mut switches) = self.0.write() {
            switches.push(filesystem.halt_switch());
        }
    }

    /// Stops all. A panic hook must not wait: who is adding one just now has not begun to serve it.
    fn stop(&self) {
        if let Ok(switches) = self.0.try_read() {
            switches.iter().for_each(|switch| switch.store(true, Ordering::Release));
        }
    }
}

/// Stops writing when something panics, before anything is unwound.
pub fn stop_writing(halts: &Halts, log: &Log) {
    let (halts, log) = (halts.clone(), Arc::clone(log));
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        halts.stop();
        log(&sentence(info));
        before(info);
    }));
}

fn sentence(info: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let place = info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let text = info.payload().downcast_ref::<&str>().copied();
    let text = text.or_else(|| info.payload().downcast_ref::<String>().map(String::as_str));
    let why = text.unwrap_or("no message").replace('\n', " ");
    let name = thread.name().unwrap_or("unnamed");
    format!("thread '{name}' panicked at {place}, nothing more is written, unmount and check: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn a_panic_sets_the_switches_and_is_told_with_its_place() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let for_log = Arc::clone(&said);
        let log: Log = Arc::new(move |sentence: &str| {
            if let Ok(mut said) = for_log.lock() {
                said.push(sentence.to_owned());
            }
        });
        let (halts, switch) = (Halts::default(), Arc::new(AtomicBool::new(false)));
        halts.0.write().expect("nobody holds it").push(Arc::clone(&switch));
        stop_writing(&halts, &log);
        let joined = std::thread::Builder::new().name("unlucky".into()).spawn(|| panic!("on\npurpose"));
        assert!(joined.expect("there is room for a thread").join().is_err());
        assert!(switch.load(Ordering::Acquire));
        let said = said.lock().expect("nobody holds it");
        let ours = said.iter().find(|sentence| sentence.contains("'unlucky'")).expect("it was told");
        assert!(ours.contains("panics.rs:") && ours.contains("on purpose"), "{ours}");
    }
}
