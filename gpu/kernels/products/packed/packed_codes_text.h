// The part of programs in PTX that makes elements of matrices from packed weights (weight_format.h): codes, records and
// scales in registers. Internal to brick_ring_text.cpp.
#pragma once

#include <cstdint>
#include <string>

#include "gpu/kernels/formats/weight_format.h"
#include "gpu/kernels/products/warpgroup_writer.h"

namespace lorad::gpu {

// Of a brick that lies in shared memory. Lane 4 g + t works on rows g and g + 8, numbered r = 0 and 1, and on the
// columns 32 t .. + 31 of each half of 128 columns, four of them at a time, numbered j = 0 .. 7.
// Registers of the program around it: %t, %g; addresses of the lane's first codes, high bits, record, and of Q6_K the
// second one: %codes_at, %high_at, %record_at, %second_at; free ones: %i, %j, %is, %ptr, %wide.
class PackedCodesWriter : protected TextWriter {
  protected:
    PackedCodesWriter(WeightFormat format, ScalarType type) : type_(type), format_(format) {}

    uint32_t format_number() const { return number_of(format_); }

    uint32_t halves() const { return brick_columns(format_number()) / 128; }

    void declare_codes();
    // Moves %lane_record from the row's record to the lane's words of it.
    void point_at_records();
    // Constants of all bricks.
    void start_codes();

    // All that a lane needs of a brick.
    void fetch_brick();
    void find_scales(uint32_t half, uint32_t r);
    // %a{2r}, %a{2r+1}: the four elements of row r, in the order that arrange_x() has.
    void make_elements(uint32_t half, uint32_t r, uint32_t j);
    // %b0, %b1: the same four columns of x, from %x{first} and the register behind it.
    void arrange_x(uint32_t first);

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

    void fetch_codes(uint32_t half, uint32_t r);
    void fetch_records(uint32_t r);
    void find_k_scales(uint32_t half, uint32_t r);
    void find_q6_scales(uint32_t half, uint32_t r);
    void find_group_scales(uint32_t r);
    void add_high_bits(uint32_t half, uint32_t r, uint32_t j);
    void make_integers(uint32_t half, uint32_t r, uint32_t j);
    void look_up(uint32_t word, uint32_t r);
    void scale_elements(uint32_t r, bool is_second);

    const WeightFormat format_;
};

}  // namespace lorad::gpu
