// Part of decode_layers.comp: products of a matrix with the vector in `staged`, weights streamed once by all workgroups
// together.
// ---- Products: sums of rows of w with `staged` ----

// Rows go to workgroups four at a time, and to subgroups as tiles of TILE rows. A subgroup takes a run of steps, each
// of one word for each lane and row of the tile, first along k, then tile by tile; tiles that two subgroups share are
// added in their order.
const uint kRowsApart = 4;
const uint kQkvTile = 2, kOTile = 2;  // shorter products, so that every subgroup gets about as much
// Steps whose words are on their way (docs/PERFORMANCE.md). Of gate, up and down the first two are asked for before the
// product's input, the third when that is there: answers come in order, so the input waits for what was asked for
// before.
const uint kQkvStepsAhead = 3, kOStepsAhead = 4, kFfnStepsAhead = 3;
const uint kFfnStepsFirst = 2;
// of tiles of two rows
const uint kLongestRing = kOStepsAhead > kQkvStepsAhead ? kOStepsAhead * kOTile : kQkvStepsAhead * kQkvTile;
const uint kRing = kFfnStepsAhead * kRowsApart > kLongestRing ? kFfnStepsAhead * kRowsApart : kLongestRing;

uint steps_of(const uint k) { return (k / 8 + kLanes - 1) / kLanes; }

uint64_t matrix;
uint row0, n_rows;         // of this part; of gate and up: as many rows of each half
uint half_rows, jump;      // from row half_rows on, the matrix' rows are `jump` further (gate and up)
uint last_row;             // no tile begins behind it
uint tile_now, step_now, steps_left;  // to use next
uint load_tile, load_step, loads_left;  // to load next; the last step again and again when loads_left is 1
uint64_t load_at;
uvec4 ring[kRing];         // words of the next steps, of each one for each row of the tile

uint64_t tile_address(uint tile, const uint k, const uint tile_rows) {
    uint row = tile * tile_rows;
    row += row0 + (row >= half_rows ? jump : 0);
    return matrix + uint64_t(min(row, last_row)) * (k * 2) + gl_SubgroupInvocationID * 16;
}

// Always some words of the matrix, and no condition: where a register keeps what it had unless something is loaded,
// compilers wait for the load right behind it. Lanes behind the end of a row have its last word, and zeros in `staged`
// to multiply it with.
void load_words(const uint slot, const uint k, const uint tile_rows) {
    const uint last_lanes = k / 8 % kLanes;  // with words of a row's last step; 0: all
    uint64_t at = load_at;
    if (last_lanes != 0 && load_step + 1 == steps_of(k) && gl_SubgroupInvocationID >= last_lanes) at -= (gl_SubgroupInvocationID - last_lanes + 1) * 16;
    [[unroll]] for (uint r = 0; r < tile_rows; r++) ring[slot * tile_rows + r] = Words(at + r * (k * 2)).v;
    if (loads_left <= 1) return;
    loads_left--;
    load_step++;
    load_at += kLanes * 16;
    if (load_step == steps_of(k)) {
        load_step = 0;
        load_tile++;
        load_at = tile_address(load_tile, k, tile_rows);
    }
}

// Neighbouring units for each part, as equal as they come.
uint share_begin(uint n_units, uint part) { return n_units * part / kWorkgroups; }
uint share_max(uint n_units) { return (n_units + kWorkgroups - 1) / kWorkgroups; }

// Rows of the workgroup that has most. Shares of subgroups go by them in every workgroup, so that all divisors are
// constants.
uint most_rows(const uint n) { return share_max(n / kRowsApart) * kRowsApart; }
uint most_gate_up_rows() { return most_rows(kFfnStride) * 2; }
uint subgroup_steps(const uint most, const uint k, const uint tile_rows) { return (most / tile_rows * steps_of(k) + kSubgroups - 1) / kSubgroups; }

// Zero, which compilers do not know. They put off loads to right before their use, or past it where loops end up
// unrolled; out of a loop that might go round more than once they take nothing.
uint never;
#define ONCE for (uint once = 0; once <= never; once++)

uint steps_under_way(const uint n_steps, const uint steps_ahead) { return n_steps < steps_ahead ? n_steps : steps_ahead; }

// Asks for the words of steps from..to - 1 of this product.
void load_ahead(const uint most, const uint k, const uint tile_rows, const uint from, const uint to) {
    const uint end = steps_under_way(subgroup_steps(most, k, tile_rows), to);
    if (from >= end) return;
    ONCE {
        [[unroll]] for (uint ahead = from; ahead < end; ahead++) load_words(ahead, k, tile_rows);
    }
}

void begin_loads(uint64_t w, const uint most, const uint k, const uint tile_rows, const uint n_first) {
    matrix = w;
    uint all = n_rows / tile_rows * steps_of(k);
    uint first = min(gl_SubgroupID * subgroup_steps(most, k, tile_rows), all);
    steps_left = min(subgroup_steps(most, k, tile_rows), all - first);
    tile_now = first / steps_of(k);
    step_now = first % steps_of(k);
    load_tile = tile_now;
    load_step = step_now;
    loads_left = steps_left;
    load_at = tile_address(tile_now, k, tile_rows) + step_now * (kLanes * 16);
    load_ahead(most, k, tile_rows, 0, n_first);
}

// Starts the loads of the first n_first steps of a product with n rows; may be called while `staged` is still in use.
void begin_product(uint64_t w, const uint n, const uint k, const uint tile_rows, const uint n_first) {
    row0 = share_begin(n / kRowsApart, own_part) * kRowsApart;
    n_rows = half_rows = share_begin(n / kRowsApart, own_part + 1) * kRowsApart - row0;
    jump = 0;
    last_row = n - tile_rows;
    begin_loads(w, most_rows(n), k, tile_rows, n_first);
}

// Gate and up: pairs of rows f and F + f, up to the padding of the next product; what lies behind F is computed from
// some row and not used.
void begin_gate_up(uint64_t w) {
    row0 = share_begin(kFfnStride / kRowsApart, own_part) * kRowsApart;
    half_rows = share_begin(kFfnStride / kRowsApart, own_part + 1) * kRowsApart - row0;
    n_rows = half_rows * 2;
    jump = kFfn - half_rows;
    last_row = (kFfn * 2 + 63) / 64 * 64 - kRowsApart;  // beyond it, no row of a tile is used
    begin_loads(w, most_gate_up_rows(), kHiddenStride, kRowsApart, kFfnStepsFirst);
}

// Half of the lanes go on with `low`, the others with `high`, each with what the other half had of it.
float halve(float low, float high, const uint lanes) {
    const bool is_high = (gl_SubgroupInvocationID & lanes) != 0;
    return (is_high ? high : low) + subgroupShuffleXor(is_high ? low : high, lanes);
}

// Adds up what the lanes have of all rows of a tile. A subgroup has at most one tile in common with the one before, so
// tile + subgroup is a place of its own for each part of a tile.
void keep_sums(float sums[4], bool wanted, uint tile, const uint tile_rows) {
    const uint row_lanes = kLanes / tile_rows;  // that end with the sum of a row
    float sum = tile_rows == 4 ? halve(halve(sums[0], sums[2], kLanes / 2), halve(sums[1], sums[3], kLanes / 2), kLanes / 4) : halve(sums[0], sums[1], kLanes / 2);
    [[unroll]] for (uint lanes = row_lanes / 2; lanes > 0; lanes /= 2) sum += subgroupShuffleXor(sum, lanes);
    if (wanted && gl_SubgroupInvocationID % row_lanes == 0) partials[(tile + gl_SubgroupID) * tile_rows + gl_SubgroupInvocationID / row_lanes] = sum;
}

float acc[4];    // of the tile that is being summed
float ended[4];  // of the one that has ended, if has_ended
uint ended_tile;
bool has_ended;

// With the words of a slot, which are loaded anew if `loads`.
void multiply_step(const uint slot, const bool loads, const uint k, const uint tile_rows) {
    const bool is_there = steps_left > 0;
    Eight x = unpack8(staged[step_now * kLanes + gl_SubgroupInvocationID], kType);
    float sums[4];
    [[unroll]] for (uint r = 0; r < tile_rows; r++) sums[r] = dot8(unpack8(ring[slot * tile_rows + r], kType), x, acc[r]);
    if (loads) load_words(slot, k, tile_rows);
    const bool ends = is_there && step_now + 1 == steps_of(k);
    [[unroll]] for (uint r = 0; r < tile_rows; r++) {
        ended[r] = ends ? sums[r] : ended[r];
        acc[r] = ends ? 0.0 : is_there ? sums[r] : acc[r];
    }
    ended_tile = ends ? tile_now : ended_tile;
    has_ended = has_ended || ends;
    tile_now += ends ? 1 : 0;
    step_now = ends ? 0 : is_there ? step_now + 1 : step_now;
    steps_left -= is_there ? 1 : 0;
}

// n steps with the words of slots first, first + 1, ...; what has ended is kept behind them, or behind each where tiles
// end more often.
void multiply_steps(const uint first, const uint n, const bool loads, const uint under_way, const uint k, const uint tile_rows) {
    [[unroll]] for (uint i = 0; i < n; i++) {
        multiply_step((first + i) % under_way, loads, k, tile_rows);
        if (steps_of(k) >= under_way && i + 1 < n) continue;
        keep_sums(ended, has_ended, ended_tile, tile_rows);
        has_ended = false;
    }
}

// All subgroups do as many steps as the one with most, and exchange sums whether a tile has ended or not: compilers do
// not know that a subgroup's lanes agree on that, and guard what stands behind such a condition at a price.
void multiply(const uint most, const uint k, const uint tile_rows, const uint steps_ahead) {
    const uint n_steps = subgroup_steps(most, k, tile_rows), under_way = steps_under_way(n_steps, steps_ahead);
    // of steps that still have to be loaded
    const uint rounds = (n_steps - under_way) / under_way, rest = (n_steps - under_way) % under_way;
    [[unroll]] for (uint r = 0; r < 4; r++) acc[r] = ended[r] = 0.0;
    ended_tile = 0;
    has_ended = false;
    if (rounds > 0) {
        for (uint round = 0; round < rounds + never; round++) multiply_steps(0, under_way, true, under_way, k, tile_rows);
    }
    if (rest > 0) {
        ONCE multiply_steps(0, rest, true, under_way, k, tile_rows);
    }
    multiply_steps(rest, under_way, false, under_way, k, tile_rows);
    keep_sums(acc, step_now != 0, tile_now, tile_rows);
}

// Where the first part of a row's sum lies; the others follow it a tile apart.
uint first_part(uint row, const uint most, const uint k, const uint tile_rows) {
    const uint per = subgroup_steps(most, k, tile_rows), tile = row / tile_rows;
    return (tile + tile * steps_of(k) / per) * tile_rows + row % tile_rows;
}

// After a barrier behind multiply().
float row_sum(uint row, const uint most, const uint k, const uint tile_rows) {
    const uint per = subgroup_steps(most, k, tile_rows);
    const uint most_parts = (steps_of(k) + per - 2) / per + 1;  // of a tile
    const uint tile = row / tile_rows, n_parts = ((tile + 1) * steps_of(k) - 1) / per - tile * steps_of(k) / per + 1;
    const uint first = first_part(row, most, k, tile_rows);
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < most_parts; i++) {
        if (i < n_parts) sum += partials[first + i * tile_rows];
    }
    return sum;
}
