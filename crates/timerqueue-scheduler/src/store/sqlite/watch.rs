//! Learns of other processes: that they have written, and that they have ended.
//!
//! Ground rules. On Linux nothing polls: the kernel tells of each change in the folder of the
//! processes. A process that has written touches its file there. The kernel closes the file of a
//! process that ends, which is a change as well; the lock becomes free right after, so the census
//! is repeated a few times. Where the kernel does not tell, this thread looks once a second.

use std::sync::mpsc::Sender;
use std::time::Duration;

use super::writer::Message;

/// Where the kernel does not tell.
const LOOKS: Duration = Duration::from_secs(1);

#[cfg(any(target_os = "linux", target_os = "android"))]
mod told {
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
    use rustix::io::Errno;

    use super::{LOOKS, Message, Sender};

    /// When to repeat the census after the end of a process, in milliseconds.
    const AGAIN: [i64; 6] = [0, 2, 10, 50, 250, 1_000];

    /// The notices of the kernel.
    pub(in super::super) struct Watch {
        /// None: the kernel has no more notices to give.
        changes: Option<OwnedFd>,
        stop: OwnedFd,
    }

    /// Ends the thread of a [`Watch`].
    pub(in super::super) struct Stop(OwnedFd);

    impl Stop {
        pub(in super::super) fn stop(&self) {
            let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        }
    }

    impl Watch {
        pub(in super::super) fn new(folder: &Path) -> std::io::Result<(Self, Stop)> {
            let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let other = stop.try_clone()?;
            let watched = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).and_then(|changes| {
                let events = WatchFlags::ATTRIB | WatchFlags::CLOSE_WRITE | WatchFlags::DELETE;
                let events = events | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
                add_watch(&changes, folder, events)?;
                Ok(changes)
            });
            Ok((Self { changes: watched.ok(), stop }, Stop(other)))
        }

        pub(in super::super) fn run(mut self, own: i64, messages: &Sender<Message>) {
            let own = own.to_string();
            let mut repeats: &[i64] = &[];
            loop {
                let wait = match (repeats.first(), &self.changes) {
                    (Some(&wait), _) => Some(Timespec { tv_sec: wait / 1_000, tv_nsec: wait % 1_000 * 1_000_000 }),
                    (None, Some(_)) => None,
                    (None, None) => Some(Timespec { tv_sec: LOOKS.as_secs() as i64, tv_nsec: 0 }),
                };
                let stop = PollFd::new(&self.stop, PollFlags::IN);
                let polled = match &self.changes {
                    Some(changes) => poll(&mut [stop, PollFd::new(changes, PollFlags::IN)], wait.as_ref()),
                    None => poll(&mut [stop], wait.as_ref()),
                };
                let mut number = [0; 8];
                if rustix::io::read(&self.stop, &mut number).is_ok() {
                    return;
                }
                if !matches!(polled, Ok(_) | Err(Errno::INTR)) {
                    std::thread::sleep(LOOKS); // the system is out of memory
                }
                let (mut looks, mut census) = (self.changes.is_none(), self.changes.is_none());
                if polled == Ok(0) && !repeats.is_empty() {
                    repeats = &repeats[1..];
                    census = true;
                }
                if self.read(&own, &mut looks) {
                    repeats = &AGAIN;
                }
                let sent = (!looks || messages.send(Message::Look).is_ok())
                    && (!census || messages.send(Message::Census).is_ok());
                if !sent {
                    return;
                }
            }
        }

        /// Whether a process may have ended. Once the folder is gone or has moved, this thread
        /// looks once a second.
        fn read(&mut self, own: &str, looks: &mut bool) -> bool {
            let Some(changes) = &self.changes else { return false };
            let (mut ended, mut lost) = (false, false);
            let mut buffer = [MaybeUninit::uninit(); 4_096];
            let mut reader = Reader::new(changes, &mut buffer);
            while let Ok(event) = reader.next() {
                if event.file_name().is_some_and(|name| name.to_bytes() != own.as_bytes()) {
                    *looks = true;
                    ended |= event.events().contains(ReadFlags::CLOSE_WRITE);
                }
                if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                    (*looks, ended) = (true, true);
                }
                lost |= event.events().intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED);
            }
            if lost {
                (self.changes, *looks) = (None, true);
            }
            ended
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) use told::{Stop, Watch};

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod looked {
    use std::path::Path;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};

    use super::{LOOKS, Message, Sender};

    /// Looks once a second.
    pub(in super::super) struct Watch(Receiver<()>);

    /// Ends the thread of a [`Watch`].
    pub(in super::super) struct Stop(SyncSender<()>);

    impl Stop {
        pub(in super::super) fn stop(&self) {
            let _ = self.0.try_send(());
        }
    }

    impl Watch {
        pub(in super::super) fn new(_: &Path) -> std::io::Result<(Self, Stop)> {
            let (send, receive) = sync_channel(1);
            Ok((Self(receive), Stop(send)))
        }

        pub(in super::super) fn run(self, _: i64, messages: &Sender<Message>) {
            while self.0.recv_timeout(LOOKS) == Err(RecvTimeoutError::Timeout) {
                if messages.send(Message::Look).is_err() || messages.send(Message::Census).is_err() {
                    return;
                }
            }
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) use looked::{Stop, Watch};
