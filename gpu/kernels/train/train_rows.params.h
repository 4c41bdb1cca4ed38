// Parameters of the kernels of training that go row by row. All values f32 where nothing else is said; strides in
// elements; address 0: none.
#ifndef LORAD_GPU_KERNELS_TRAIN_ROWS_PARAMS_H
#define LORAD_GPU_KERNELS_TRAIN_ROWS_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct TrainFragmentsParams {
    uint64_t x;          // [rows][x_stride] of f32 or 16 bits
    uint64_t fragments;  // the same in 16 bits and in fragments
    uint32_t k;          // columns; those behind are zero in the fragments
    uint32_t x_stride;
    uint32_t fragments_stride;  // a multiple of 16
    uint32_t rows;
};
INTEROP_SIZE(TrainFragmentsParams, 32);

// Parameters of train_round, in fragments or as rows of f32 times a factor.
struct TrainRoundKernelParams {
    uint64_t from, to;
    uint32_t columns;
    uint32_t from_stride, to_stride;
    uint32_t rows;
    float factor;
    uint32_t pad;
};
INTEROP_SIZE(TrainRoundKernelParams, 40);

struct TrainRoundParams {
    uint64_t from;     // [t][from_stride] f32
    uint64_t to;       // [t][to_stride] of 16 bits; rows of both begin at multiples of 16 bytes
    uint32_t columns;  // a multiple of 4
    uint32_t from_stride, to_stride;
    float factor;
};
INTEROP_SIZE(TrainRoundParams, 32);

// One of many matrices that are rounded by one dispatch: to[t][c] = factor * from[t][c].
struct TrainRoundItem {
    uint64_t from;           // f32 [t][from_stride]
    uint64_t to;             // of 16 bits [t][to_stride]; rows of both begin at multiples of 16 bytes
    uint32_t rows, columns;  // columns: a multiple of 4
    uint32_t from_stride, to_stride;
    float factor;
    uint32_t first;  // quads (four columns of a row) of the items before it
};
INTEROP_SIZE(TrainRoundItem, 40);
struct TrainRoundItemsParams {
    uint64_t items;  // TrainRoundItem[n_items]
    uint32_t n_items;
    uint32_t n_quads;  // of all
};
INTEROP_SIZE(TrainRoundItemsParams, 16);

// Rows of one sequence, kFlashRows of them or what is left.
struct TrainFlashTile {
    uint32_t first_row, n_tokens;  // of the sequence
    uint32_t begin;                // token of the tile's first row
    uint32_t pad;
};
INTEROP_SIZE(TrainFlashTile, 16);
INTEROP_CONST kFlashRows = 64;

struct TrainFlashParams {
    uint64_t tiles;   // TrainFlashTile[n_tiles]
    uint64_t heads;   // 16 bits [t][heads_stride]: q and k normed and turned, and v
    uint64_t o;       // [t][o_stride], also dout, dk and dv
    uint64_t lse;     // [t][query heads], to the base of 2
    uint64_t dout;    // 16 bits
    uint64_t dots;    // [t][query heads]
    uint64_t dq;      // [t][dq_stride]
    uint64_t dk, dv;  // of each query head
    uint32_t heads_stride, o_stride, dq_stride;
    uint32_t k_begin, v_begin;  // columns of heads
    float scale;
    uint32_t window;  // as TrainSoftmaxParams has it
    uint32_t n_tiles;
};
INTEROP_SIZE(TrainFlashParams, 104);

struct TrainDotsParams {
    uint64_t o, dout;   // [t][stride]
    uint64_t rounded;   // 16 bits [t][stride]: dout
    uint64_t dots;      // [t][heads]
    uint32_t head_dim;  // even
    uint32_t stride;
};
INTEROP_SIZE(TrainDotsParams, 40);

struct TrainEmbedParams {
    uint64_t table;   // [vocab][table_stride] of any type, forward also a packed part of so many columns
    uint64_t tokens;  // u32[rows]
    uint64_t x;       // [t][x_stride]
    uint64_t rows;    // of the kernel: TrainEmbedBackwardParams's, whose dtable and dx then are table and x
    uint32_t hidden;
    uint32_t table_stride;
    uint32_t x_stride;
    uint32_t pad;
};
INTEROP_SIZE(TrainEmbedParams, 48);

// The rows in which one token stands.
struct TrainTokenRows {
    uint32_t token;
    uint32_t begin, n;  // in the list of rows
};
INTEROP_SIZE(TrainTokenRows, 12);

struct TrainEmbedBackwardParams {
    uint64_t tokens;  // TrainTokenRows[grid x]
    uint64_t rows;    // u32[]
    uint64_t dx;      // [t][x_stride]
    uint64_t dtable;  // [vocab][table_stride], added to
    uint32_t hidden;
    uint32_t x_stride;
    uint32_t table_stride;
    uint32_t pad;
};
INTEROP_SIZE(TrainEmbedBackwardParams, 48);

struct TrainNormParams {
    uint64_t x;      // [.][x_stride]
    uint64_t gamma;  // [hidden]
    uint64_t y;      // forward: [t][y_stride], its padding zeroed; of any type, of 16 bits with an even y_stride
    uint64_t dy;     // backward: [t][y_stride]
    uint64_t dx;     // backward: [.][x_stride], added to
    uint64_t terms;  // backward: [t][y_stride], what gamma's gradient sums over the rows, or 0
    uint64_t rows;   // u32[t]: the row of x and dx, or 0: t
    uint32_t hidden;
    uint32_t x_stride;
    uint32_t y_stride;
    float eps;
};
INTEROP_SIZE(TrainNormParams, 72);

struct TrainHeadsParams {
    uint64_t y;  // [t][y_stride]: heads of q, then of k, as the product gives them
    // [t][turned_stride]: the same normed and turned, of 16 bits with the values behind; backward: their gradients
    uint64_t turned;
    uint64_t dy;     // backward: [t][y_stride]
    uint64_t terms;  // backward: [t][turned_stride], what the gammas' gradients sum over rows and heads, or 0
    uint64_t rope;   // [turn][rotary_dim / 2][2]: cos, sin
    uint64_t turns;  // u32[t]: each row's turn
    uint64_t q_gamma, k_gamma;  // [D], or 0: no norm
    uint32_t n_q_heads;
    uint32_t y_stride;
    uint32_t turned_stride;
    float eps;
    uint32_t n_turned_heads;  // of q and k; those behind are rounded alone
    uint32_t pad;
};
INTEROP_SIZE(TrainHeadsParams, 88);

// to[t][h * D + d] = sum over the n_group heads of KV head h of from
struct TrainSumHeadsParams {
    uint64_t from;     // [t][from_stride]: query heads
    uint64_t to;       // [t][to_stride]: KV heads
    uint32_t columns;  // KV heads * D
    uint32_t head_dim;
    uint32_t n_group;
    uint32_t from_stride, to_stride;
    uint32_t pad;
};
INTEROP_SIZE(TrainSumHeadsParams, 40);

// Parameters of train_sum_heads, in either form.
struct TrainHeadSumsParams {
    uint64_t from, to;
    uint64_t dout, rounded;  // TrainDotsParams; from is o, and to dots
    uint32_t columns;
    uint32_t head_dim;
    uint32_t n_group;
    uint32_t from_stride, to_stride;
    uint32_t pad;
};
INTEROP_SIZE(TrainHeadSumsParams, 56);

// The scores of a run of queries of one sequence and head.
struct TrainScores {
    uint64_t at;  // elements from the beginning of scores and dscores
    uint32_t n_queries, n_keys, stride;
    uint32_t first_query;  // its position among the keys
};
INTEROP_SIZE(TrainScores, 24);

struct TrainSoftmaxParams {
    uint64_t items;    // TrainScores[grid z]
    uint64_t scores;   // q k in, probabilities out; backward: probabilities
    uint64_t dscores;  // backward: gradients of the probabilities in, of q k out
    float scale;       // of q k
    uint32_t window;   // keys that a query sees, itself included; 0: all up to itself
    // of a query q no more zeros are written than in front of key (q / zero_tile + 2) * zero_tile; 0: all
    uint32_t zero_tile;
    uint32_t pad;
};
INTEROP_SIZE(TrainSoftmaxParams, 40);

struct TrainActParams {
    uint64_t y;     // [t][y_stride]: gate, then up
    uint64_t h;     // [t][h_stride]: forward: out, its padding zeroed; backward: gradients in, f32
    uint64_t dy;    // backward: [t][y_stride]
    uint64_t sums;  // forward, of 16 bits: [t][y_stride] f32, which y is written from first; 0: y is there
    uint32_t ffn;   // of 16 bits a multiple of 4
    uint32_t y_stride;
    uint32_t h_stride;
    uint32_t rows;
    uint32_t zero;  // to the compiler any number
    uint32_t pad;
};
INTEROP_SIZE(TrainActParams, 56);

// to[t][n] = base[t][n] + z[t][n] * (gain[n] * factor[n] - less) + bias[n]
struct TrainAffineParams {
    uint64_t to, base, z;  // base and z may be `to`; to and z f32 or of 16 bits, then without base and bias
    uint64_t gain, factor, bias;
    uint32_t n;  // of 16 bits a multiple of 4, and rows begin at multiples of 8 bytes
    uint32_t to_stride, base_stride, z_stride;
    uint32_t rows;
    float less;
};
INTEROP_SIZE(TrainAffineParams, 72);

// to[n] += scale * factor[n] * sum over rows t and parts q of a[t][q * n_columns + n] * b[t][q * n_columns + n]
struct TrainColumnSumsParams {
    uint64_t to;
    uint64_t a;       // [t][a_stride], f32 or of 16 bits
    uint64_t b;       // [t][b_stride] of the same type, or 0: 1
    uint64_t factor;  // [n], or 0: 1
    uint32_t n_columns;
    uint32_t n_parts;
    uint32_t rows;
    uint32_t a_stride, b_stride;
    float scale;
};
INTEROP_SIZE(TrainColumnSumsParams, 56);

// One row of the output layer. With a ratio the loss is -weight * exp(log-probability - sampled), else
// -weight * log-probability.
struct TrainTarget {
    uint32_t token;
    float weight;
    float sampled;  // log-probability that the token had when it was sampled
    uint32_t has_ratio;
};
INTEROP_SIZE(TrainTarget, 16);
struct TrainLoss {
    float loss;
    float log_probability;  // of the target
    uint32_t is_best;       // the target has the greatest logit
};
INTEROP_SIZE(TrainLoss, 12);

// What train_dropout writes: what is left of x, that added to what is there, or x without what is left of it.
INTEROP_CONST kDropoutLeft = 0;
INTEROP_CONST kDropoutAdds = 1;
INTEROP_CONST kDropoutRest = 2;

struct TrainDropoutParams {
    uint64_t x;         // [t][x_stride], f32 or of 16 bits
    uint64_t to;        // [t][to_stride] of the same type; of 16 bits four columns at a time
    uint64_t row_keys;  // u32[t][2]: example and position
    uint32_t columns;
    uint32_t x_stride, to_stride;
    uint32_t module;  // this and the next two: what a mask depends on beside the row and the column
    uint32_t seed, step;
    uint32_t threshold;  // a random word below it drops: p * 2^32
    float factor;        // 1 / (1 - p)
};
INTEROP_SIZE(TrainDropoutParams, 56);

struct TrainCrossEntropyParams {
    uint64_t logits;   // [t][stride]; with gradient out: the loss's gradient, padding zeroed
    uint64_t targets;  // TrainTarget[t]
    uint64_t losses;   // TrainLoss[t]
    uint32_t vocab;
    uint32_t stride;
};
INTEROP_SIZE(TrainCrossEntropyParams, 32);

struct TrainGradNormParams {
    uint64_t gradients;
    uint64_t sums;  // f32[grid x]: of the squares of each workgroup's part
    uint32_t n;
    uint32_t n_per_group;
};
INTEROP_SIZE(TrainGradNormParams, 24);

// AdamW of PyTorch: p *= 1 - rate * decay; m = m + (1 - beta1)(g - m); v = beta2 v + (1 - beta2) g^2; p -= step_size m
// / (sqrt(v) / root + eps)
struct TrainAdamwParams {
    uint64_t values, gradients, first, second;  // each [n]
    uint32_t n;
    float factor;  // what gradients are multiplied with before: 1 / tokens and clipping
    float keep;    // 1 - rate * decay
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float step_size;  // rate / (1 - beta1^k)
    float root;       // sqrt(1 - beta2^k)
    float eps;
    uint32_t pad;
};
INTEROP_SIZE(TrainAdamwParams, 72);

INTEROP_END

#endif
