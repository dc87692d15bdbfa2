//! The priority of the calling thread: how the kernel orders its disk requests, and how much processor time it gets.

#![allow(unsafe_code, reason = "no safe function sets the I/O priority of a thread")]

use std::io;

/// The class of I/O priorities, with the numbers of `ioprio_set(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoClass {
    /// No class: the kernel derives one from the nice value.
    None,
    /// Before all others; needs a privilege.
    RealTime,
    /// The usual one.
    BestEffort,
    /// Only when nobody else uses the disk.
    Idle,
}

impl IoClass {
    /// The class with a number.
    pub fn from_number(number: u8) -> Option<IoClass> {
        [IoClass::None, IoClass::RealTime, IoClass::BestEffort, IoClass::Idle].get(usize::from(number)).copied()
    }

    /// The number of the class.
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// Gives the calling thread an I/O priority; `level` is 0 (first) to 7.
pub fn set_io_priority(class: IoClass, level: u8) -> io::Result<()> {
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_SHIFT: u32 = 13;
    let priority = (libc::c_int::from(class.number()) << CLASS_SHIFT) | libc::c_int::from(level & 7);
    // SAFETY: `ioprio_set` takes three integers and touches no memory of ours; id 0 is the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, priority) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets every other thread of the system have the processor first.
pub fn yield_processor_to_others() -> io::Result<()> {
    Ok(rustix::process::setpriority_process(None, 19)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_lower_itself() {
        let lowered = std::thread::spawn(|| {
            set_io_priority(IoClass::Idle, 0)?;
            yield_processor_to_others()?;
            io::Result::Ok(rustix::process::getpriority_process(None)?)
        });
        assert_eq!(lowered.join().unwrap().unwrap(), 19);
        assert!(rustix::process::getpriority_process(None).unwrap() < 19, "only that thread");
    }
}
