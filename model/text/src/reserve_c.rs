//! malloc and its kin for the C code that is built into this library (model/text.cmake renames them): Oniguruma writes through the null that it gets otherwise.

use std::alloc::Layout;
use std::ptr::null_mut;

use crate::reserve::{from_reserve, give_back, owns, GRAIN};

extern "C" {
    fn malloc(n_bytes: usize) -> *mut u8;
    fn calloc(n: usize, n_bytes: usize) -> *mut u8;
    fn realloc(memory: *mut u8, n_bytes: usize) -> *mut u8;
    fn free(memory: *mut u8);
    fn malloc_usable_size(memory: *mut u8) -> usize;
}

/// C frees without telling the size: it stands in a grain before what is handed out.
fn layout_of(n_bytes: usize) -> Option<Layout> {
    Layout::from_size_align(n_bytes.checked_add(GRAIN)?, GRAIN).ok()
}

unsafe fn reserved(n_bytes: usize) -> *mut u8 {
    let Some(layout) = layout_of(n_bytes) else { return null_mut() };
    let memory = from_reserve(layout, || malloc(n_bytes));
    if !owns(memory) {
        return memory;
    }
    memory.cast::<usize>().write(n_bytes);
    memory.add(GRAIN)
}

unsafe fn size_of(memory: *mut u8) -> usize {
    if owns(memory) {
        memory.sub(GRAIN).cast::<usize>().read()
    } else {
        malloc_usable_size(memory)
    }
}

/// # Safety
/// That of malloc.
#[no_mangle]
pub unsafe extern "C" fn lorad_text_malloc(n_bytes: usize) -> *mut u8 {
    let memory = malloc(n_bytes);
    if memory.is_null() {
        return reserved(n_bytes);
    }
    memory
}

/// # Safety
/// That of calloc.
#[no_mangle]
pub unsafe extern "C" fn lorad_text_calloc(n: usize, n_bytes: usize) -> *mut u8 {
    let memory = calloc(n, n_bytes);
    if !memory.is_null() {
        return memory;
    }
    let Some(n_bytes) = n.checked_mul(n_bytes) else { return memory };
    let memory = reserved(n_bytes);
    if !memory.is_null() {
        memory.write_bytes(0, n_bytes);
    }
    memory
}

/// # Safety
/// That of realloc.
#[no_mangle]
pub unsafe extern "C" fn lorad_text_realloc(memory: *mut u8, n_bytes: usize) -> *mut u8 {
    if !owns(memory) {
        let moved = realloc(memory, n_bytes);
        if !moved.is_null() || (n_bytes == 0 && !memory.is_null()) {
            return moved;
        }
    }
    let moved = lorad_text_malloc(n_bytes);
    if !moved.is_null() && !memory.is_null() {
        moved.copy_from_nonoverlapping(memory, size_of(memory).min(n_bytes));
        lorad_text_free(memory);
    }
    moved
}

/// # Safety
/// That of free.
#[no_mangle]
pub unsafe extern "C" fn lorad_text_free(memory: *mut u8) {
    if !owns(memory) {
        return free(memory);
    }
    if let Some(layout) = layout_of(size_of(memory)) {
        give_back(memory.sub(GRAIN), layout);
    }
}
