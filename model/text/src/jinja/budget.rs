//! What one rendering may take: work, memory and time. Templates come with adapters, which anybody
//! may have made, so whatever an operation does is charged before it is done: what it looks at, what
//! it copies, what it makes. The budget is the thread's, because a rendering is one call on one
//! thread, and because values are compared and printed in places that know nothing of it.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::{fail, Result};
use crate::reserve::held_bytes;

/// A unit is a nanosecond or two. A conversation of a million bytes in a large template takes a
/// hundredth of this.
const MAX_WORK: i64 = 300_000_000;
/// Beyond what the thread had in use at the start: input, values and text together.
const MAX_BYTES: isize = 128 << 20;
/// By the wall clock, for a machine that is held up.
const MAX_TIME: Duration = Duration::from_secs(2);
/// So much work is done between two looks at the clock.
const LOOK_EVERY: i64 = 1 << 20;

/// A text longer than this is a template gone wrong.
pub const MAX_TEXT: usize = 64 << 20;

const TOO_MUCH_MEMORY: &str = "the template takes more than 128 MiB of memory";
pub const TOO_LONG: &str = "a text is longer than 64 MiB";

/// An expression, a statement, a call.
pub const STEP: usize = 32;
/// An item that is looked at or copied.
pub const ELEMENT: usize = 8;
/// An item that is made: memory of its own.
pub const NEW_ELEMENT: usize = 48;

struct State {
    is_active: Cell<bool>,
    work_left: Cell<i64>,
    /// Work left at which the clock is asked next.
    look_at: Cell<i64>,
    bytes_at_most: Cell<isize>,
    deadline: Cell<Option<Instant>>,
    /// Why the rendering has ended.
    over: Cell<Option<&'static str>>,
}

thread_local! {
    static STATE: State = const {
        State {
            is_active: Cell::new(false),
            work_left: Cell::new(i64::MAX),
            look_at: Cell::new(i64::MIN),
            bytes_at_most: Cell::new(isize::MAX),
            deadline: Cell::new(None),
            over: Cell::new(None),
        }
    };
}

/// The budget of a rendering, for as long as it lives. One inside another is a part of it.
pub struct Budget {
    is_outermost: bool,
}

impl Budget {
    pub fn start() -> Budget {
        STATE.with(|state| {
            let is_outermost = !state.is_active.replace(true);
            if is_outermost {
                state.work_left.set(MAX_WORK);
                state.look_at.set(MAX_WORK - LOOK_EVERY);
                state.bytes_at_most.set(held_bytes().saturating_add(MAX_BYTES));
                state.deadline.set(Instant::now().checked_add(MAX_TIME));
                state.over.set(None);
            }
            Budget { is_outermost }
        })
    }

    /// Why the rendering had to end, if it had to.
    pub fn over(&self) -> Option<&'static str> {
        STATE.with(|state| state.over.get())
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        if !self.is_outermost {
            return;
        }
        STATE.with(|state| {
            state.is_active.set(false);
            state.work_left.set(i64::MAX);
            state.look_at.set(i64::MIN);
            state.bytes_at_most.set(isize::MAX);
            state.over.set(None);
        })
    }
}

/// Before so much work is done. Once a budget is spent, whatever is charged fails.
#[inline]
pub fn charge(work: usize) -> Result<()> {
    STATE.with(|state| {
        let left = state.work_left.get().saturating_sub_unsigned(work as u64);
        state.work_left.set(left);
        if left >= state.look_at.get() && held_bytes() <= state.bytes_at_most.get() {
            return Ok(());
        }
        look(state)
    })
}

#[cold]
fn look(state: &State) -> Result<()> {
    let left = state.work_left.get();
    if !state.is_active.get() {
        state.work_left.set(i64::MAX);
        return Ok(());
    }
    let why = if state.over.get().is_some() {
        state.over.get()
    } else if left < 0 {
        Some("the template takes too many steps")
    } else if held_bytes() > state.bytes_at_most.get() {
        Some(TOO_MUCH_MEMORY)
    } else if state.deadline.get().is_some_and(|deadline| Instant::now() > deadline) {
        Some("the template takes longer than 2 s")
    } else {
        None
    };
    match why {
        Some(why) => end(why),
        None => {
            state.look_at.set(left.saturating_sub(LOOK_EVERY));
            Ok(())
        }
    }
}

/// Before so many items are looked at or copied.
pub fn charge_items(count: usize) -> Result<()> {
    charge(count.saturating_mul(ELEMENT))
}

/// Before so many bytes of text are read one by one.
pub fn charge_text(bytes: usize) -> Result<()> {
    charge(bytes)
}

/// Before so many bytes are copied, compared or hashed as a whole.
pub fn charge_bytes(bytes: usize) -> Result<()> {
    charge(bytes / 16)
}

/// Before memory of that size is taken.
pub fn room(bytes: usize) -> Result<()> {
    let is_too_much =
        STATE.with(|state| held_bytes().saturating_add_unsigned(bytes) > state.bytes_at_most.get());
    if is_too_much {
        return end(TOO_MUCH_MEMORY);
    }
    charge(bytes / 16)
}

/// Ends the rendering, for a reason that is none of the template's own errors.
pub fn end<T>(why: &'static str) -> Result<T> {
    STATE.with(|state| {
        if state.is_active.get() && state.over.get().is_none() {
            state.over.set(Some(why));
            // Nothing is left: every further charge fails.
            state.look_at.set(i64::MAX);
        }
    });
    fail!("{why}")
}

/// Before a text of that length is made.
pub fn room_for_text(bytes: usize) -> Result<()> {
    if bytes > MAX_TEXT {
        return end(TOO_LONG);
    }
    room(bytes)
}

/// Before so many bytes are added to a text.
pub fn room_for_more(text: &str, bytes: usize) -> Result<()> {
    if bytes > MAX_TEXT - text.len().min(MAX_TEXT) {
        return end(TOO_LONG);
    }
    room(bytes)
}

/// Before so many items are put into a list.
pub fn room_for_items(count: usize) -> Result<()> {
    room(count.saturating_mul(size_of::<super::Value<'static>>()))?;
    charge_items(count)
}
