// The part of programs in PTX that makes elements of matrices from packed weights (weight_format.h): codes, records and
// scales in registers. Internal to what brick_ring_text.h is for.
#pragma once

#include <cstdint>
#include <string>

#include "gpu/kernels/formats/weight_format.h"
#include "gpu/kernels/products/warpgroup_writer.h"

namespace lorad::gpu {

// Of a brick that lies in shared memory, or in memory if `load` says so, or of two that follow each other, as halves of
// one. Lane 4 g + t works on rows g and g + 8, numbered r = 0 and 1, and on the columns 32 t .. + 31 of each half of
// 128 columns, four of them at a time, numbered j = 0 .. 7.
// Registers of the program around it: %lane, %t, %g; those that place_lane() sets; addresses of the lane's first codes,
// high bits, record, and of Q6_K the second one: %codes_at, %high_at, %record_at, %second_at; free ones: %i, %j, %is,
// %ptr, %wide.
class PackedCodesWriter : protected TextWriter {
  protected:
    // load: the instruction that takes words from where the brick lies. is_pair: of bricks of 128 columns.
    PackedCodesWriter(WeightFormat format, ScalarType type, const char* load = "ld.shared", bool is_pair = false)
        : type_(type), format_(format), load_(load), is_pair_(is_pair) {}

    uint32_t format_number() const { return number_of(format_); }

    uint32_t planes() const { return code_words() / 4; }  // of 4 matrices each, if there are two, or of 8
    uint32_t halves() const { return is_pair_ ? 2 : brick_columns(format_number()) / 128; }

    void declare_codes(uint32_t sets = 1);
    // %lane_high, %lane_record, %lane_second: where the lane's high bits and records lie in a brick.
    void place_lane();
    // Constants of all bricks.
    void start_codes();

    // All that a lane needs of a brick: the codes of each half, or of codes of 8 bits of its first and second columns
    // apart, and the records.
    void fetch_codes(uint32_t half);
    void fetch_plane(uint32_t half, uint32_t plane);
    void fetch_records();
    void find_scales(uint32_t half, uint32_t r);
    // %a{2r}, %a{2r+1}: the four elements of row r, in the order that arrange_x() has. Of further sets behind
    // those of the sets before.
    void make_elements(uint32_t half, uint32_t r, uint32_t j, uint32_t set = 0);
    // %b0, %b1: the same four columns of x, from %x{first} and the register behind it.
    void arrange_x(uint32_t first);
    // Instead of arrange_x(): the elements of both rows in the order of their columns.
    void arrange_elements(uint32_t set);

    const ScalarType type_;

  private:
    bool is_integer() const { return has_integer_codes(format_number()); }
    // Scales and products of f16 pairs; else of f32.
    bool is_in_halves() const { return type_ == ScalarType::kF16 && is_integer(); }
    uint32_t code_words() const { return has_8bit_codes(format_number()) ? 8 : 4; }  // of a row's half
    uint32_t high_words() const { return high_bits_of(format_number()); }
    // The first of a row's registers.
    uint32_t code(uint32_t half, uint32_t r) const { return (half * 2 + r) * code_words(); }
    uint32_t high(uint32_t half, uint32_t r) const { return (half * 2 + r) * high_words(); }
    static uint32_t record(uint32_t r) { return r * 4; }

    // Moves %lane_record from the row's record to the lane's words of it.
    void point_at_records();
    void fetch_records(uint32_t r);
    void find_k_scales(uint32_t half, uint32_t r);
    void find_q6_scales(uint32_t half, uint32_t r);
    void find_group_scales(uint32_t word, uint32_t r);
    // Where a half lies, beyond its place in a brick.
    uint32_t half_offset(uint32_t half) const { return is_pair_ ? half * brick_bytes(format_number()) : 0; }
    void add_high_bits(uint32_t half, uint32_t r, uint32_t j);
    void make_integers(uint32_t half, uint32_t r, uint32_t j);
    // Of row r's elements, in the set that is made.
    uint32_t element(uint32_t r) const { return set_ * 4 + 2 * r; }
    bool is_by_table() const { return !is_integer() && format_ != WeightFormat::kFP8; }
    void look_up(uint32_t word, uint32_t r);
    void scale_elements(uint32_t r, bool is_second);

    const WeightFormat format_;
    const char* const load_;
    const bool is_pair_;
    uint32_t set_ = 0;
};

}  // namespace lorad::gpu
