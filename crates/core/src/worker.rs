//! Which runtime a piece of work is on.
//!
//! The gateway runs one single-threaded runtime per core: connections and the requests on them stay on one core,
//! and so do the connections to backends that serve them. A resource that exists once per runtime (a
//! connection pool) is picked by [`current`].

use std::cell::Cell;

thread_local! {
    static INDEX: Cell<usize> = const { Cell::new(0) };
}

/// Marks this thread as the runtime number `index`.
pub fn enter(index: usize) {
    INDEX.with(|cell| cell.set(index));
}

/// The number of this thread's runtime; 0 where nobody said otherwise.
pub fn current() -> usize {
    INDEX.with(Cell::get)
}
