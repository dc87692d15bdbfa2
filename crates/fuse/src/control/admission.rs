//! The number of connections that unprivileged users may have.

use super::{MOST_GUESTS, MOST_OF_ONE_GUEST, is_trusted};
use butterfs_control::Refusal;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// See the [module](self).
pub struct Admission {
    /// Whether anybody but root and the user of this process has some.
    for_all: bool,
    guests: Mutex<HashMap<u32, usize>>,
}

/// One of the connections that a user may have.
pub struct Guest {
    admission: Arc<Admission>,
    uid: u32,
}

impl Admission {
    pub fn for_all() -> Arc<Admission> {
        Arc::new(Admission { for_all: true, guests: Mutex::default() })
    }

    pub fn for_owners() -> Arc<Admission> {
        Arc::new(Admission { for_all: false, guests: Mutex::default() })
    }

    /// Counts one more connection of a user, as long as the guest is there.
    pub fn admit(self: &Arc<Self>, uid: u32) -> Result<Guest, Refusal> {
        if !self.for_all && !is_trusted(uid, rustix::process::geteuid().as_raw()) {
            let sentence = "only root and the user who mounted the filesystem may ask";
            return Err(Refusal::new(libc::EACCES, sentence));
        }
        let mut guests = self.guests.lock();
        let (all, own) = (guests.values().sum::<usize>(), guests.get(&uid).copied().unwrap_or(0));
        if all >= MOST_GUESTS || own >= MOST_OF_ONE_GUEST {
            return Err(Refusal::new(libc::EAGAIN, "too many commands ask at the same time; try again later"));
        }
        *guests.entry(uid).or_default() += 1;
        Ok(Guest { admission: Arc::clone(self), uid })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut guests = self.admission.guests.lock();
        if let Some(count) = guests.get_mut(&self.uid) {
            *count -= 1;
        }
        guests.retain(|_, count| *count > 0);
    }
}
