#include "gpu/kernels/tuning/product_timing.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>

#include "gpu/facts/start_record.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/products/few_rows/few_row_tiles.h"
#include "gpu/kernels/products/register_tiles.h"
#include "gpu/kernels/self_test.h"
#include "gpu/profiler.h"
#include "gpu/queue.h"
#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/thread.h"

namespace lorad::gpu {
namespace {

constexpr double kExpectedMax = 4;  // times what the table's form takes: what is expected to be slower is not tried
constexpr double kOnceMax = 1.5;    // times the fastest: what was slower in its first turn gets no others
constexpr uint32_t kTurnsMin = 3, kTurnsMax = 9;
constexpr uint64_t kCopiesBytes = uint64_t{256} << 20;  // of the matrix, so that no cache holds it
constexpr uint32_t kCopiesMax = 8;

double middle_of(std::vector<double> times) {
    std::ranges::sort(times);
    return times[times.size() / 2];
}

}  // namespace

Status ProductTiming::run(const TuningOptions& options) {
    facts_.measured = {};
    if (!has_choice(options)) return ok_status();
    const std::string key = record_key(options);
    if (options.when == Tuning::kRemembered && (take_earlier(key) || facts_.capabilities.is_cpu)) return ok_status();
    begin_ = std::chrono::steady_clock::now();
    // Software measures only on request, and takes as much longer.
    constexpr int kSoftwareSlower = 20;
    end_ = begin_ + options.time_max * (facts_.capabilities.is_cpu ? kSoftwareSlower : 1);
    tiles_max_ = options.tiles_max;
    Result<MeasuredProducts> measured = measure(options);
    if (!measured.ok() && measured.error().code != ErrorCode::kOutOfMemory) return measured.error();
    if (!measured.ok()) {
        log_warn("products are not measured, and computed as on other devices: {}", measured.error().message);
        return ok_status();
    }
    tell(*measured);
    device_.start_record().put(key, measured->text());
    facts_.measured = std::move(measured).value();
    return ok_status();
}

bool ProductTiming::has_choice(const TuningOptions& options) const {
    if (options.when == Tuning::kOff || facts_.capabilities.compiles_only || options.products.empty()) return false;
    return facts_.ladder.has(RungId::kRegisters) && !facts_.options.batch_invariant;
}

// Of all that the measuring depends on beside device, driver and build, which the record knows.
std::string ProductTiming::record_key(const TuningOptions& options) const {
    const DeviceCapabilities& caps = facts_.capabilities;
    std::string text = lorad::format("{} {} {} {} {} {} {}", facts_.ladder.has(RungId::kShortSums), caps.subgroup_size,
                                     caps.subgroup_size_max, caps.shared_memory_bytes, caps.max_workgroup_invocations,
                                     caps.max_workgroup_subgroups, fmt::join(facts_.options.left_out, ","));
    for (const Product& product : options.products)
        text += lorad::format(" {}x{},{},{},{}", product.n, product.k, static_cast<uint32_t>(product.type),
                              product.rows, product.max_splits);
    return std::string(kMeasuredKey) + sha256_hex(std::as_bytes(std::span(text))).substr(0, 16);
}

// False: there is none, or none that this device can take.
bool ProductTiming::take_earlier(const std::string& key) {
    const std::optional<std::string> known = device_.start_record().find(key);
    if (!known) return false;
    std::optional<MeasuredProducts> measured = MeasuredProducts::parse(*known);
    if (!measured || !can_take(*measured)) {
        log_warn("start record: what it has of measured products is not for this device: ignored, they are measured "
                 "again");
        return false;
    }
    facts_.measured = std::move(*measured);
    log_debug("products: as an earlier start has measured them");
    return true;
}

bool ProductTiming::can_take(const MeasuredProducts& measured) const {
    return std::ranges::all_of(measured.all(), [&](const MeasuredProduct& product) {
        return std::ranges::all_of(product.forms, [&](const MeasuredForm& one) {
            return candidate_of(product.product(), one.form).has_value();
        });
    });
}

double ProductTiming::seconds_left() const {
    return std::chrono::duration<double>(end_ - std::chrono::steady_clock::now()).count();
}

Result<MeasuredProducts> ProductTiming::measure(const TuningOptions& options) {
    MeasuredProducts all;
    auto told = begin_;
    for (size_t i = 0; i < options.products.size() && seconds_left() > 0; ++i) {
        TRY_ASSIGN(MeasuredProduct measured, measure(options.products[i]));
        if (measured.forms.size() > 1) all.add(std::move(measured));
        if (const auto now = std::chrono::steady_clock::now(); now - told > std::chrono::seconds(2)) {
            told = now;
            log_info("measuring products: {} of {}", i + 1, options.products.size());
        }
    }
    return all;
}

// All forms of products with such weights whose kernels can be made and compute what the portable one does.
Result<const std::vector<ProductForm>*> ProductTiming::forms_of(ScalarType type) {
    std::optional<std::vector<ProductForm>>& known = forms_[static_cast<uint32_t>(type)];
    if (known) return &*known;
    const Product any{.n = self_test::kTestProductN, .k = self_test::kTestProductK, .type = type, .rows = 64};
    std::vector<ProductForm> forms;
    const auto add = [&](const ProductForm& form) {
        const bool is_taken = candidate_of(any, form).has_value();
        if (is_taken) forms.push_back(form);
        return is_taken;
    };
    add({.tile = kTiledForm});
    for (uint32_t tile = 0, n_tiles = 0; tile < kRegisterTiles.size() && n_tiles < tiles_max_; ++tile) {
        const bool in_f16 = add({.tile = tile, .short_sum = kShortSum}), in_f32 = add({.tile = tile});
        n_tiles += in_f16 || in_f32 ? 1 : 0;
    }
    for (uint32_t i = 0; i < std::min<uint32_t>(kStreamTiles.size(), tiles_max_); ++i) {
        add({.tile = kStreamForm + i, .short_sum = kShortSum});
        add({.tile = kStreamForm + i});
    }
    // Software compiles for long, and measures only on request: there it does not count.
    constexpr std::chrono::hours kEnough{1};
    const bool counts = !facts_.capabilities.is_cpu;
    const auto began = std::chrono::steady_clock::now();
    if (!counts) end_ += kEnough;
    make_kernels(type, forms);
    TRY(self_test::keep_forms_that_work(device_, kernels_, type, forms, [&] { return seconds_left() > 0; }));
    if (!counts) end_ += std::chrono::steady_clock::now() - began - kEnough;
    known = std::move(forms);
    return &*known;
}

// Compiling may take most of the time, and runs well side by side; half of what is left is for it. Forms whose kernels
// cannot be made are left out. Those that tests at the start had are there already.
void ProductTiming::make_kernels(ScalarType type, std::vector<ProductForm>& forms) {
    constexpr uint32_t kThreadsMax = 8;
    const Product any{.n = self_test::kTestProductN, .k = self_test::kTestProductK, .type = type, .rows = 64};
    std::mutex mutex;
    std::vector<ProductForm> made;
    std::atomic<size_t> next{0};
    const double kept_s = seconds_left() / 2;
    const auto work = [&] {
        for (size_t i = next++; i < forms.size() && seconds_left() > kept_s; i = next++) {
            Result<Recorder> recorder = Recorder::begin(device_);
            if (!recorder.ok()) return;
            const MatmulParams params{.w_stride = padded(any.k), .x_stride = padded(any.k)};
            kernels_.products.record(*recorder, candidate_of(any, forms[i])->plan, {.product = params});
            if (!kernels_.status().ok()) continue;
            const std::lock_guard lock(mutex);
            made.push_back(forms[i]);
        }
    };
    run_on_threads(kThreadsMax, work);
    std::erase_if(forms, [&](const ProductForm& form) { return std::ranges::find(made, form) == made.end(); });
}

std::optional<ProductTiming::Candidate> ProductTiming::candidate_of(const Product& product,
                                                                    const ProductForm& form) const {
    const ProductPlanner& products = kernels_.planner().products;
    const std::optional<MatmulPlan> plan = products.plan_by_form(product, form);
    if (!plan) return std::nullopt;
    return Candidate{.form = form, .plan = *plan, .expected = products.expected_time(product, *plan)};
}

// The table's first; empty: it does not work.
std::vector<ProductTiming::Candidate> ProductTiming::candidates_of(const Product& product, const ProductForm& table,
                                                                   const std::vector<ProductForm>& forms) const {
    std::vector<Candidate> all;
    for (const ProductForm& form : forms) {
        if (is_stream_form(form) && product.rows > kStreamRowsMax) continue;
        if (std::optional<Candidate> candidate = candidate_of(product, form)) all.push_back(std::move(*candidate));
    }
    const auto first = std::ranges::find(all, table, &Candidate::form);
    if (first == all.end()) return {};
    std::swap(all.front(), *first);
    // What tiles in shared memory are expected to take is in a unit of its own.
    const double longest = kExpectedMax * all.front().expected;
    std::erase_if(all, [&](const Candidate& one) { return one.form.tile != kTiledForm && one.expected > longest; });
    return all;
}

// The same with k cut finer and coarser, where that makes a difference.
std::vector<ProductTiming::Candidate> ProductTiming::cuts_of(const Product& product,
                                                             const std::vector<Candidate>& all) const {
    std::vector<Candidate> cuts;
    for (const Candidate& one : all) {
        if (one.form.tile == kTiledForm) continue;
        for (const int32_t cut : {-1, 1}) {
            ProductForm form = one.form;
            form.cut = cut;
            std::optional<Candidate> other = candidate_of(product, form);
            if (other && other->plan.n_splits != one.plan.n_splits) cuts.push_back(std::move(*other));
        }
    }
    return cuts;
}

// n_splits: the most that a candidate has.
Result<ProductTiming::Operands> ProductTiming::make_operands(const Product& product, uint32_t n_splits) {
    constexpr uint32_t kTenthF16 = 0x2e662e66, kTenthBf16 = 0x3dcd3dcd, kTenthF32 = 0x3dcccccd;
    const uint64_t n_padded = padded(product.n), k_padded = padded(product.k), rows = product.rows + kSlackRows;
    Operands on;
    on.w_bytes = round_up(n_padded * k_padded * bytes_of(product.type), uint64_t{256});
    on.n_copies = static_cast<uint32_t>(std::clamp(kCopiesBytes / on.w_bytes, uint64_t{1}, uint64_t{kCopiesMax}));
    TRY(self_test::make(device_, on.count, 16, MemoryKind::kHostUpload));
    std::memcpy(on.count.mapped().data(), &product.rows, 4);
    TRY(self_test::make(device_, on.w, on.w_bytes * on.n_copies, MemoryKind::kDeviceLocal));
    TRY(self_test::make(device_, on.x, rows * k_padded * 4, MemoryKind::kDeviceLocal));
    TRY(self_test::make(device_, on.y, n_splits * rows * n_padded * 4, MemoryKind::kDeviceLocal));
    TRY_ASSIGN(Recorder recorder, Recorder::begin(device_));
    recorder.fill(on.w, 0, on.w_bytes * on.n_copies, product.type == ScalarType::kF16 ? kTenthF16 : kTenthBf16);
    recorder.fill(on.x, 0, rows * k_padded * 4, kTenthF32);
    TRY(self_test::submit_and_wait(device_, std::move(recorder)));
    return on;
}

Status ProductTiming::record(const Product& product, const Operands& on, uint32_t copy, Candidate& candidate) {
    MatmulParams params{.n_rows = on.count.address(),
                        .w = on.w.address() + (copy % on.n_copies) * on.w_bytes,
                        .x = on.x.address(),
                        .y = on.y.address(),
                        .n = product.n,
                        .k = product.k,
                        .w_stride = padded(product.k),
                        .x_stride = padded(product.k),
                        .y_stride = padded(product.n)};
    params.split_stride = (product.rows + kSlackRows) * padded(product.n);
    TRY_ASSIGN(Recorder recorder, Recorder::begin(device_, {.span_timestamps = true}));
    kernels_.products.record(recorder, candidate.plan, {.product = params});
    TRY(kernels_.status());
    TRY_ASSIGN(CommandBuffer recording, std::move(recorder).end());
    candidate.recording = std::make_unique<CommandBuffer>(std::move(recording));
    return ok_status();
}

// One behind the other: taken in turns none has another clock than the others.
Status ProductTiming::time_once(std::span<Candidate> some) {
    std::vector<const CommandBuffer*> list;
    for (const Candidate& one : some) list.push_back(one.recording.get());
    TRY_ASSIGN(const uint64_t done, device_.compute_queue().submit(list));
    TRY(device_.compute_queue().wait(done));
    for (Candidate& one : some) {
        TRY_ASSIGN(const std::vector<DispatchTime> times, read_dispatch_times(device_, *one.recording));
        if (!times.empty()) one.times.push_back(times.front().us);
    }
    return ok_status();
}

// Each by itself, so that it ends soon after its time is over: false then. The first time a program is fetched, so it
// is the second that counts.
Result<bool> ProductTiming::take_first_turn(const Product& product, const Operands& on, std::vector<Candidate>& all) {
    for (size_t i = 0; i < all.size(); ++i) {
        TRY(record(product, on, static_cast<uint32_t>(i), all[i]));
        for (int turn = 0; turn < 2; ++turn) {
            TRY(time_once({&all[i], 1}));
            if (all[i].times.empty() || seconds_left() <= 0) return false;
        }
        all[i].times.erase(all[i].times.begin());
    }
    return true;
}

Result<MeasuredProduct> ProductTiming::measure(const Product& product) {
    MeasuredProduct measured{
        .n = product.n, .k = product.k, .type = product.type, .rows = product.rows, .max_splits = product.max_splits};
    const std::optional<MatmulPlan> usual = kernels_.planner().products.plan(product);
    const bool is_stream = usual && usual->variant == MatmulVariant::kStream;
    if (!usual || (!is_stream && usual->variant != MatmulVariant::kRegisters)) return measured;
    const ProductForm table{.tile = usual->tile + (is_stream ? kStreamForm : 0), .short_sum = usual->short_sum};
    TRY_ASSIGN(const std::vector<ProductForm>* forms, forms_of(product.type));
    std::vector<Candidate> all = candidates_of(product, table, *forms);
    if (all.size() < 2) return measured;
    std::vector<Candidate> cuts = cuts_of(product, all);
    uint32_t n_splits = 1;
    for (const std::vector<Candidate>* some : {&all, &cuts}) {
        for (const Candidate& one : *some) n_splits = std::max(n_splits, one.plan.n_splits);
    }
    TRY_ASSIGN(const Operands on, make_operands(product, n_splits));
    TRY_ASSIGN(const bool had_time, take_first_turn(product, on, all));
    if (!had_time) return measured;

    const auto first_us = [](const Candidate& one) { return one.times.front(); };
    const Candidate& best = *std::ranges::min_element(all, {}, first_us);
    const double fastest = first_us(best);
    const ProductForm fastest_form = best.form;
    std::erase_if(all, [&](const Candidate& one) { return one.form != table && first_us(one) > kOnceMax * fastest; });
    double turn_us = 0;
    for (const Candidate& one : all) turn_us += first_us(one);
    for (Candidate& other : cuts) {
        ProductForm whole = other.form;
        whole.cut = 0;
        if (whole != table && whole != fastest_form) continue;
        TRY(record(product, on, static_cast<uint32_t>(all.size()), other));
        turn_us += fastest;
        all.push_back(std::move(other));
    }
    // At most half of the time that is left is one product's.
    const double turns = seconds_left() * 1e6 / 2 / turn_us;
    if (turns < kTurnsMin) return measured;
    for (Candidate& one : all) one.times.clear();
    for (uint32_t turn = 0; turn < kTurnsMax && turn < turns; ++turn) TRY(time_once(all));
    for (const Candidate& one : all) measured.forms.push_back({one.form, middle_of(one.times)});
    return measured;
}

void ProductTiming::tell(const MeasuredProducts& measured) const {
    size_t n_better = 0;
    for (const MeasuredProduct& product : measured.all()) {
        if (product.better() == nullptr) continue;
        ++n_better;
        log_info("products: {}: {}", describe(product), describe_better(product));
    }
    log_info("products: {} measured in {:.1f} s, of which {} are not computed as the table has it",
             measured.all().size(), std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(),
             n_better);
}

}  // namespace lorad::gpu
