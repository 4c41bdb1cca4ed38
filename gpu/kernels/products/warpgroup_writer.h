// Shared by the writers of programs in text, and internal to these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include "gpu/kernels/persistent/grid_barrier.h"
#include "gpu/kernels/products/matmul.params.h"
#include "gpu/kernels/products/matmul_plan.h"
#include "gpu/kernels/products/prefetch_pages.h"
#include "proto/base/format.h"

namespace lorad::gpu {

// Matrices in shared memory: rows of 128 bytes, which are 64 elements of k, swizzled, eight rows 1,024 bytes apart;
// lengths in units of 16 bytes (PTX ISA, "Matrix Descriptor Format"). A slot of 128 elements of k has two such matrices
// side by side.
constexpr uint32_t kSwizzledRowBytes = 128;
constexpr uint64_t kSwizzledDescriptor = uint64_t{1} << 62 | uint64_t{1024 / 16} << 32 | uint64_t{1} << 16;
// The offset from a slot's beginning to its k16-th 16 elements of k, in the units of a descriptor.
constexpr uint32_t swizzled_offset(uint32_t k16, uint32_t rows) {
    return k16 / 4 * (rows * kSwizzledRowBytes / 16) + k16 % 4 * 2;
}

class TextWriter {
  protected:
    template <typename... Args>
    void line(fmt::format_string<Args...> pattern, Args&&... args) {
        fmt::format_to(std::back_inserter(text_), pattern, std::forward<Args>(args)...);
        text_ += '\n';
    }

    // ISA and entry, up to the body.
    void begin_entry(uint32_t threads, size_t param_bytes) {
        line(".version 8.0");
        line(".target sm_90a");
        line(".address_size 64");
        line(".visible .entry matmul(.param .align 8 .b8 params[{}])", param_bytes);
        line(".maxntid {}, 1, 1", threads);
    }

    // Stores an f32 in 16 bits where `predicate` holds. bounded: f16 beyond its range becomes its greatest. Uses %h.
    void store_16(ScalarType type, const char* value, const char* at, uint32_t offset, const char* predicate,
                  bool bounded) {
        if (type == ScalarType::kF16) {
            if (bounded) line("min.f32 {0}, {0}, 0f477fe000; max.f32 {0}, {0}, 0fc77fe000;", value);
            line("cvt.rn.f16.f32 %h, {};", value);
        } else {
            line("cvt.rn.bf16.f32 %h, {};", value);
        }
        line("@{} st.global.b16 [{}+{}], %h;", predicate, at, offset);
    }

    // For a thread that has told its arrival: polls at most %polls_max times until %target have arrived
    // (GridBarrierSync at %sync), and goes on at met_<name>. On a timeout it says so in memory and waits no more.
    // arrivals: their address. number, at: free registers of 32 and 64 bits; others used: %seen, %polls, %is.
    void poll_arrivals(const char* name, const char* arrivals, const char* number, const char* at,
                       size_t given_up_param) {
        line("poll_{0}: ld.acquire.gpu.global.u32 %seen, [{1}]; sub.u32 %seen, %seen, %target; setp.ge.s32 %is, %seen, "
             "0; @%is bra met_{0};",
             name, arrivals);
        line("add.u32 %polls, %polls, 1; setp.lt.u32 %is, %polls, %polls_max; @%is bra poll_{};", name);
        line("mov.u32 %polls_max, 0; mov.u32 {0}, 1; ld.param.u64 {1}, [params+{2}]; st.global.u32 [{1}], {0}; "
             "st.relaxed.gpu.global.u32 [%sync+{3}], {0};",
             number, at, given_up_param, offsetof(GridBarrierSync, has_given_up));
    }

    // The n / 2 sums %sum of a thread from first_sum on += A of 64x16 in four registers, a list, times B of 16xn at a
    // descriptor, which lies as [n][k], or transposed.
    void multiply_16(uint32_t n, ScalarType type, uint32_t first_sum, const std::string& a, const char* b,
                     bool is_transposed = false) {
        std::string sums;
        for (uint32_t i = 0; i < n / 2; ++i) sums += lorad::format("{}%sum{}", i > 0 ? ", " : "", first_sum + i);
        line("wgmma.mma_async.sync.aligned.m64n{0}k16.f32.{1}.{1} {{{2}}}, {{{3}}}, {4}, 1, 1, 1, {5};", n,
             type == ScalarType::kBf16 ? "bf16" : "f16", sums, a, b, is_transposed ? 1 : 0);
    }
    // A's list: four registers one after the other.
    static std::string four(const char* name, uint32_t first) {
        return lorad::format("{0}{1}, {0}{2}, {0}{3}, {0}{4}", name, first, first + 1, first + 2, first + 3);
    }

    std::string text_;
};

// Where a product's parameter lies, whatever stands behind MatmulParams.
#define MATMUL_PARAM(member) offsetof(MatmulParams, member)
static_assert(offsetof(MatmulStackedParams, product) == 0 && offsetof(MatmulArgmaxParams, product) == 0);

// The base of the writers of products by warpgroups.
class WarpgroupWriter : protected TextWriter {
  protected:
    // PrefetchPages among the parameters, a page for each thread of the grid: its first threads, one of each workgroup,
    // have the first pages.
    void prefetch_pages(size_t pages_param) {
        line("{{ .reg .pred %has_page; .reg .b32 %page, %pages, %workgroups, %other; .reg .b64 %page_at, %begins, "
             "%to_page;");
        line("ld.param.u64 %begins, [params+{}]; ld.param.u32 %pages, [params+{}];",
             pages_param + offsetof(PrefetchPages, begin), pages_param + offsetof(PrefetchPages, n));
        line("mov.u32 %page, %ctaid.z; mov.u32 %workgroups, %nctaid.y; mov.u32 %other, %ctaid.y; mad.lo.u32 %page, "
             "%page, %workgroups, %other;");
        line("mov.u32 %other, %nctaid.z; mul.lo.u32 %workgroups, %workgroups, %other; mov.u32 %other, %tid.x; "
             "mad.lo.u32 %page, %other, %workgroups, %page;");
        line("and.b64 %page_at, %begins, -{0}; mul.wide.u32 %to_page, %page, {0}; add.u64 %page_at, %page_at, "
             "%to_page; max.u64 %page_at, %page_at, %begins;",
             kPrefetchPageBytes);
        line("setp.lt.u32 %has_page, %page, %pages; @%has_page prefetch.global.L2 [%page_at]; }}");
    }

    // The next slot of the ring.
    void advance(const char* slot, uint32_t slot_bytes, uint32_t ring_bytes) {
        line("add.u32 {0}, {0}, {1}; setp.eq.u32 %is, {0}, {2}; selp.b32 {0}, 0, {0}, %is;", slot, slot_bytes,
             ring_bytes);
    }
};

}  // namespace lorad::gpu
