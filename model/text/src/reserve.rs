//! The allocator of this library: the system's, and where that has nothing, memory that was set aside at the start. A failed allocation of Rust
//! ends the process otherwise. What is under way ends in order with the reserve; what is new is to be refused until `is_whole` (lorad_text.h).

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::Duration;

use crate::{Code, Failure};

/// Address space only, until it is needed.
const RESERVE_BYTES: usize = 32 << 20;
/// Pieces begin at multiples of this, and have such sizes.
pub const GRAIN: usize = 64;
/// What the system must have again before the reserve counts as whole.
const PROBE_BYTES: usize = 4 << 20;
/// The reserve is empty: others end, and give back; so long is waited for that.
const WAIT: Duration = Duration::from_millis(10);
const WAITS_MAX: u32 = 200;
/// Inputs from this size on are asked for beforehand, at so many bytes for each of theirs. Encoding takes most, its tables of characters and tokens: 373 where
/// every other byte is a digit and each a token, 272 for words.
const LARGE_INPUT_BYTES: usize = 32 << 10;
const BYTES_FOR_EACH: usize = 400;

#[repr(C, align(4096))]
struct Memory(UnsafeCell<[u8; RESERVE_BYTES]>);
// SAFETY: pieces of it are handed out under the lock of PIECES, each to one owner.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; RESERVE_BYTES]));
static PIECES: Mutex<Pieces> =
    Mutex::new(Pieces { first: null_mut(), n_used: 0, is_set_up: false });
static IS_SHORT: AtomicBool = AtomicBool::new(false);
/// A process that is to end where its memory does.
static IS_GIVEN_UP: AtomicBool = AtomicBool::new(false);
/// Of large inputs that are being worked on.
static ASKED_FOR: AtomicUsize = AtomicUsize::new(0);

/// A free piece; the list is in the order of addresses, and pieces that touch are one.
struct Piece {
    n_bytes: usize,
    next: *mut Piece,
}

struct Pieces {
    first: *mut Piece,
    n_used: usize,
    is_set_up: bool,
}
// SAFETY: the pointers are into MEMORY.
unsafe impl Send for Pieces {}

impl Pieces {
    fn set_up(&mut self) {
        if self.is_set_up {
            return;
        }
        self.is_set_up = true;
        self.first = MEMORY.0.get().cast();
        // SAFETY: nobody has a piece yet.
        unsafe { self.first.write(Piece { n_bytes: RESERVE_BYTES, next: null_mut() }) };
    }

    /// The first piece that is large enough, or null.
    unsafe fn take(&mut self, n_bytes: usize) -> *mut u8 {
        self.set_up();
        let mut link: *mut *mut Piece = &mut self.first;
        while !(*link).is_null() {
            let piece = *link;
            let n_left = (*piece).n_bytes.wrapping_sub(n_bytes);
            if (*piece).n_bytes >= n_bytes {
                if n_left == 0 {
                    *link = (*piece).next;
                } else {
                    let rest = piece.cast::<u8>().add(n_bytes).cast::<Piece>();
                    rest.write(Piece { n_bytes: n_left, next: (*piece).next });
                    *link = rest;
                }
                self.n_used += n_bytes;
                return piece.cast();
            }
            link = &mut (*piece).next;
        }
        null_mut()
    }

    unsafe fn give(&mut self, memory: *mut u8, n_bytes: usize) {
        let given = memory.cast::<Piece>();
        let end_of = |piece: *mut Piece| piece.cast::<u8>().add((*piece).n_bytes).cast::<Piece>();
        let mut before: *mut Piece = null_mut();
        let mut after = self.first;
        while !after.is_null() && after < given {
            before = after;
            after = (*after).next;
        }
        given.write(Piece { n_bytes, next: after });
        if !after.is_null() && end_of(given) == after {
            (*given).n_bytes += (*after).n_bytes;
            (*given).next = (*after).next;
        }
        if before.is_null() {
            self.first = given;
        } else if end_of(before) == given {
            (*before).n_bytes += (*given).n_bytes;
            (*before).next = (*given).next;
        } else {
            (*before).next = given;
        }
        self.n_used -= n_bytes;
    }
}

fn pieces() -> std::sync::MutexGuard<'static, Pieces> {
    PIECES.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn rounded(n_bytes: usize) -> usize {
    n_bytes.max(1).next_multiple_of(GRAIN)
}

pub fn owns(memory: *mut u8) -> bool {
    (memory as usize).wrapping_sub(MEMORY.0.get() as usize) < RESERVE_BYTES
}

/// Waits where the reserve has nothing left, for it or for the system; null when that did not help.
#[cold]
pub unsafe fn from_reserve(layout: Layout, of_system: impl Fn() -> *mut u8) -> *mut u8 {
    IS_SHORT.store(true, Ordering::Relaxed);
    if IS_GIVEN_UP.load(Ordering::Relaxed) {
        return null_mut();
    }
    if layout.align() > GRAIN || layout.size() > RESERVE_BYTES {
        return null_mut();
    }
    for _ in 0..WAITS_MAX {
        let memory = pieces().take(rounded(layout.size()));
        if !memory.is_null() {
            return memory;
        }
        std::thread::sleep(WAIT);
        let memory = of_system();
        if !memory.is_null() {
            return memory;
        }
    }
    null_mut()
}

/// From here on what the system refuses is refused.
pub fn give_up() {
    IS_GIVEN_UP.store(true, Ordering::Relaxed);
}

pub unsafe fn give_back(memory: *mut u8, layout: Layout) {
    pieces().give(memory, rounded(layout.size()));
}

thread_local! {
    /// Memory that this thread took and did not give back, and the most it was of late.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(n_bytes: isize) {
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + n_bytes, most.max(now + n_bytes)));
    });
}

/// Memory that this thread took and did not give back. What changes threads is counted where that happens, so only the difference over a piece of work
/// means something.
pub fn held_bytes() -> isize {
    HELD.with(|held| held.get().0)
}

/// What this thread takes from its start on. One at a time: an inner one ends the outer's `most`.
pub struct Meter(isize);

impl Meter {
    pub fn start() -> Meter {
        HELD.with(|held| {
            let now = held.get().0;
            held.set((now, now));
            Meter(now)
        })
    }
    pub fn held(&self) -> isize {
        HELD.with(|held| held.get().0 - self.0)
    }
    pub fn most(&self) -> isize {
        HELD.with(|held| held.get().1 - self.0)
    }
}

struct Reserved;

#[global_allocator]
static ALLOCATOR: Reserved = Reserved;

// SAFETY: memory is the system's or a piece of the reserve, which its address tells.
unsafe impl GlobalAlloc for Reserved {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        let memory = System.alloc(layout);
        if memory.is_null() {
            return from_reserve(layout, || System.alloc(layout));
        }
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        let memory = System.alloc_zeroed(layout);
        if !memory.is_null() {
            return memory;
        }
        let memory = from_reserve(layout, || System.alloc(layout));
        if !memory.is_null() {
            memory.write_bytes(0, layout.size());
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        if owns(memory) {
            give_back(memory, layout);
        } else {
            System.dealloc(memory, layout);
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, n_bytes: usize) -> *mut u8 {
        if !owns(memory) {
            let moved = System.realloc(memory, layout, n_bytes);
            if !moved.is_null() {
                count(n_bytes as isize - layout.size() as isize);
                return moved;
            }
        }
        let moved = self.alloc(Layout::from_size_align_unchecked(n_bytes, layout.align()));
        if !moved.is_null() {
            moved.copy_from_nonoverlapping(memory, layout.size().min(n_bytes));
            self.dealloc(memory, layout);
        }
        moved
    }
}

fn system_has(n_bytes: usize) -> bool {
    let Ok(layout) = Layout::from_size_align(n_bytes, GRAIN) else { return false };
    // SAFETY: nothing is done with it.
    unsafe {
        let memory = black_box(System.alloc(layout));
        if memory.is_null() {
            return false;
        }
        System.dealloc(memory, layout);
    }
    true
}

/// False from a failed allocation on until the system has memory again and most of the reserve is back.
pub fn is_whole() -> bool {
    if !IS_SHORT.load(Ordering::Relaxed) {
        return true;
    }
    if pieces().n_used > RESERVE_BYTES / 4 || !system_has(PROBE_BYTES) {
        return false;
    }
    IS_SHORT.store(false, Ordering::Relaxed);
    true
}

/// Room for what a large input needs while it is worked on.
pub struct Room(usize);

impl Room {
    pub fn for_input(n_bytes: usize) -> Result<Room, Failure> {
        // Where there is no reserve, nothing is done for those who might need it meanwhile.
        if n_bytes < LARGE_INPUT_BYTES || IS_GIVEN_UP.load(Ordering::Relaxed) {
            return Ok(Room(0));
        }
        let room = Room(n_bytes.saturating_mul(BYTES_FOR_EACH));
        let all = ASKED_FOR.fetch_add(room.0, Ordering::Relaxed).saturating_add(room.0);
        if system_has(all) {
            return Ok(room);
        }
        Err(Failure::new(Code::NoMemory, format!("no memory for an input of {n_bytes} bytes")))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        ASKED_FOR.fetch_sub(self.0, Ordering::Relaxed);
    }
}
