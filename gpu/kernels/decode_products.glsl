// Part of decode_layers.comp: products of a matrix with the vector in `staged`, weights streamed once by all workgroups together.
// ---- Products: sums of rows of w with `staged` ----

// Rows go to workgroups four at a time, and to subgroups as tiles of TILE rows. A subgroup takes a run of steps, each of one word for
// each lane and row of the tile, first along k, then tile by tile; tiles that two subgroups share are added in their order.
const uint kRowsApart = 4;
const uint kQkvTile = 2, kOTile = 2;  // shorter products, so that every subgroup gets about as much
const uint kQkvStepsAhead = 2;        // whose words are on their way; of the other products kOStepsAhead and kFfnStepsAhead
const uint kRing = kFfnStepsAhead * kRowsApart > kOStepsAhead * kOTile ? kFfnStepsAhead * kRowsApart : kOStepsAhead * kOTile;

uint steps_of(const uint k) { return (k / 8 + kLanes - 1) / kLanes; }

uint64_t matrix;
uint row0, n_rows;         // of this part; of gate and up: as many rows of each half
uint half_rows, jump;      // from row half_rows on, the matrix' rows are `jump` further (gate and up)
uint last_row;             // no tile begins behind it
uint tile_now, step_now, steps_left;  // to use next
uint load_tile, load_step, loads_left;  // to load next
uint64_t load_at;
uvec4 ring[kRing];         // words of the next steps, of each one for each row of the tile

uint64_t tile_address(uint tile, const uint k, const uint tile_rows) {
    uint row = tile * tile_rows;
    row += row0 + (row >= half_rows ? jump : 0);
    if (kFfn % 64 != 0) row = min(row, last_row);
    return matrix + uint64_t(row) * (k * 2) + gl_SubgroupInvocationID * 16;
}

uvec4 load_word(const uint k, const uint row) {
    if (k / 8 % kLanes != 0 && load_step * kLanes + gl_SubgroupInvocationID >= k / 8) return uvec4(0);
    return Words(load_at + row * (k * 2)).v;
}

void next_load(const uint k, const uint tile_rows) {
    if (loads_left > 0) loads_left--;
    bool ends = load_step + 1 == steps_of(k);
    load_step = ends ? 0 : load_step + 1;
    if (ends) load_tile++;
    load_at = ends ? tile_address(load_tile, k, tile_rows) : load_at + kLanes * 16;
}

// Neighbouring units for each part, as equal as they come.
uint share_begin(uint n_units, uint part) { return n_units * part / kWorkgroups; }
uint share_max(uint n_units) { return (n_units + kWorkgroups - 1) / kWorkgroups; }

// Rows of the workgroup that has most. Shares of subgroups go by them in every workgroup, so that all divisors are constants.
uint most_rows(const uint n) { return share_max(n / kRowsApart) * kRowsApart; }
uint most_gate_up_rows() { return most_rows(kFfnStride) * 2; }
uint steps_of_subgroup(const uint most, const uint k, const uint tile_rows) { return (most / tile_rows * steps_of(k) + kSubgroups - 1) / kSubgroups; }

void begin_loads(uint64_t w, const uint most, const uint k, const uint tile_rows, const uint steps_ahead) {
    matrix = w;
    uint all = n_rows / tile_rows * steps_of(k);
    uint first = min(gl_SubgroupID * steps_of_subgroup(most, k, tile_rows), all);
    steps_left = min(steps_of_subgroup(most, k, tile_rows), all - first);
    tile_now = first / steps_of(k);
    step_now = first % steps_of(k);
    load_tile = tile_now;
    load_step = step_now;
    loads_left = steps_left;
    load_at = tile_address(tile_now, k, tile_rows) + step_now * (kLanes * 16);
    [[unroll]] for (uint ahead = 0; ahead < steps_ahead; ahead++) {
        [[unroll]] for (uint r = 0; r < tile_rows; r++) {
            ring[ahead * tile_rows + r] = uvec4(0);
            if (loads_left > 0) ring[ahead * tile_rows + r] = load_word(k, r);
        }
        next_load(k, tile_rows);
    }
}

// Starts the first loads of a product with n rows; may be called while `staged` is still in use.
void begin_product(uint64_t w, const uint n, const uint k, const uint tile_rows, const uint steps_ahead) {
    row0 = share_begin(n / kRowsApart, own_part) * kRowsApart;
    n_rows = half_rows = share_begin(n / kRowsApart, own_part + 1) * kRowsApart - row0;
    jump = 0;
    last_row = n;
    begin_loads(w, most_rows(n), k, tile_rows, steps_ahead);
}

// Gate and up: pairs of rows f and F + f, up to the padding of the next product; what lies behind F is computed from some row and
// not used.
void begin_gate_up(uint64_t w) {
    row0 = share_begin(kFfnStride / kRowsApart, own_part) * kRowsApart;
    half_rows = share_begin(kFfnStride / kRowsApart, own_part + 1) * kRowsApart - row0;
    n_rows = half_rows * 2;
    jump = kFfn - half_rows;
    last_row = (kFfn * 2 + 63) / 64 * 64 - kRowsApart;  // beyond it, no row of a tile is used
    begin_loads(w, most_gate_up_rows(), kHiddenStride, kRowsApart, kFfnStepsAhead);
}

// A subgroup has at most one tile in common with the one before, so tile + subgroup is a place of its own for each part of a tile.
void end_part(inout float acc[4], const uint tile_rows) {
    [[unroll]] for (uint r = 0; r < tile_rows; r++) {
        float sum = subgroupAdd(acc[r]);
        if (subgroupElect()) partials[(tile_now + gl_SubgroupID) * tile_rows + r] = sum;
        acc[r] = 0.0;
    }
    step_now = 0;
    tile_now++;
}

void multiply(const uint k, const uint tile_rows, const uint steps_ahead) {
    float acc[4] = {0.0, 0.0, 0.0, 0.0};
    while (steps_left > 0) {
        [[unroll]] for (uint ahead = 0; ahead < steps_ahead; ahead++) {
            if (steps_left == 0) break;
            steps_left--;
            bool ends = step_now + 1 == steps_of(k);
            Eight x = unpack8(staged[step_now * kLanes + gl_SubgroupInvocationID], kType);
            [[unroll]] for (uint r = 0; r < tile_rows; r++) {
                Eight w = unpack8(ring[ahead * tile_rows + r], kType);
                if (loads_left > 0) ring[ahead * tile_rows + r] = load_word(k, r);
                acc[r] = dot8(w, x, acc[r]);
            }
            next_load(k, tile_rows);
            step_now++;
            if (ends) end_part(acc, tile_rows);
        }
    }
    if (step_now != 0) end_part(acc, tile_rows);
}

// After a barrier behind multiply().
float row_sum(uint row, const uint most, const uint k, const uint tile_rows) {
    const uint per = steps_of_subgroup(most, k, tile_rows);
    uint tile = row / tile_rows;
    uint first = tile * steps_of(k) / per;
    uint last = ((tile + 1) * steps_of(k) - 1) / per;
    float sum = 0.0;
    for (uint s = first; s <= last; s++) sum += partials[(tile + s) * tile_rows + row % tile_rows];
    return sum;
}
