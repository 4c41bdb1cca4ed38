//! What a thread drops at its end. glibc has a function for it, which ends the process where it finds no memory for its note; this is found in its place by the
//! Rust of this library, and by nobody else (model/text.cmake hides it).

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

type Drop = unsafe extern "C" fn(*mut u8);

struct Note {
    drop: Drop,
    value: *mut u8,
    next: *mut Note,
}

extern "C" {
    fn pthread_key_create(
        key: *mut u32,
        at_end: Option<unsafe extern "C" fn(*mut c_void)>,
    ) -> c_int;
    fn pthread_getspecific(key: u32) -> *mut c_void;
    fn pthread_setspecific(key: u32, value: *const c_void) -> c_int;
}

/// In the reverse order; what the values themselves note meanwhile comes in another round.
unsafe extern "C" fn drop_all(notes: *mut c_void) {
    let mut next = notes.cast::<Note>();
    while !next.is_null() {
        let note = Box::from_raw(next);
        next = note.next;
        (note.drop)(note.value);
    }
}

fn key() -> Option<u32> {
    static KEY: OnceLock<Option<u32>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the key is written to.
        (unsafe { pthread_key_create(&mut key, Some(drop_all)) } == 0).then_some(key)
    })
}

/// # Safety
/// That of glibc's function of the name. A value that cannot be noted is left as it is.
#[no_mangle]
pub unsafe extern "C" fn __cxa_thread_atexit_impl(
    drop: Drop,
    value: *mut u8,
    _library: *mut u8,
) -> c_int {
    let Some(key) = key() else { return 0 };
    let next = pthread_getspecific(key).cast::<Note>();
    let note = Box::into_raw(Box::new(Note { drop, value, next }));
    if pthread_setspecific(key, note.cast()) != 0 {
        let _ = Box::from_raw(note);
    }
    0
}
