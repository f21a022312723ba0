//! What a process that holds secrets does not let happen.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// No core dump can be made of this process, and no other of the same user can read its memory. Processes that it
/// starts can't be dumped either.
///
/// # Errors
///
/// If the system does not allow that.
pub fn forbid_core_dumps() -> std::io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
