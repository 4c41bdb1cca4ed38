// How TrainingService makes a job: what a request is refused for before anything is read, and what of it is kept.
#include <algorithm>
#include <map>
#include <tuple>

#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/json/json.h"
#include "server/training/training_service.h"

namespace lorad::server::training {

Status TrainingService::check_request(const std::string& tenant, const proto::FineTuningRequest& request) const {
    for (const auto& [id, param] :
         {std::pair(request.training_file, "training_file"), std::pair(request.validation_file, "validation_file")}) {
        if (id.empty() && std::string_view(param) == "validation_file") continue;
        const std::optional<StoredFile> file = files_->find(tenant, id);
        if (!file)
            return make_error(ErrorCode::kInvalidRequest,
                              format("{}: no file is called {}", param, json_quote_short(id)), param);
        if (file->object.purpose != "fine-tune") {
            return make_error(ErrorCode::kInvalidRequest,
                              format("{}: expected a file of the purpose fine-tune, found {}", param,
                                     json_quote_short(file->object.purpose)),
                              param);
        }
    }
    if (request.recipe.max_seq_length.value_or(0) > host_.facts().n_positions_max) {
        return make_error(
            ErrorCode::kInvalidRequest,
            format("max_seq_length: expected at most {}, the context that is served", host_.facts().n_positions_max),
            "max_seq_length");
    }
    return request.init_from.empty() ? check_recipe(request) : ok_status();
}

// Names the modules by the field that the client has given them in.
Status TrainingService::check_recipe(const proto::FineTuningRequest& request) const {
    constexpr std::string_view kPefts = "target_modules", kOurs = "lora_trainable_modules";
    const Status checked = host_.check_recipe(request.recipe);
    if (checked.ok() || checked.error().param != kPefts ||
        std::ranges::find(request.form_fields, kPefts) != request.form_fields.end())
        return checked;
    Error error = checked.error();
    error.param = kOurs;
    if (error.message.starts_with(kPefts)) error.message.replace(0, kPefts.size(), kOurs);
    return error;
}

Status TrainingService::check_room(const std::string& tenant) const {
    const auto n_active = std::ranges::count_if(entries_, [&](const auto& entry) {
        return entry.second.job.tenant == tenant && !is_ended(entry.second.job.state);
    });
    if (uint64_t(n_active) < limits_.n_active_max) return ok_status();
    return make_error(
        ErrorCode::kRateLimited,
        format("{} jobs of this key have not ended, as many as it may have; wait for one, or cancel it", n_active));
}

// Whatever becomes of the adapter later, the job has what it begins with.
Status TrainingService::keep_start(Job& job) const {
    Result<adapters::PeftFiles> files = host_.start_files(job.init_from);
    if (!files.ok()) {
        Error error = files.error();
        error.param = job.model == host_.facts().base_name ? "init_from" : "model";
        return error;
    }
    TRY(adapters::write_peft_folder(*files, folder_of(job.id).start()));
    job.start_digest = start_digest_of(*files);
    return ok_status();
}

Result<proto::JobObject> TrainingService::create(const std::string& tenant, const proto::FineTuningRequest& request) {
    const Status trains = host_.check_trains();
    if (!trains.ok()) return make_error(ErrorCode::kInvalidRequest, trains.error().message, "model");
    {
        MutexLock lock(mutex_);
        TRY(check_room(tenant));
    }
    TRY(check_request(tenant, request));
    Job job;
    job.id = new_id("ftjob-");
    job.tenant = tenant;
    job.model = request.model;
    job.training_file = request.training_file;
    job.validation_file = request.validation_file;
    job.suffix = request.suffix;
    job.init_from = request.init_from;
    job.name = request.suffix.empty() ? format("ft-{}", job.id.substr(6, 8)) : request.suffix;
    job.expected_generation = host_.generation_of(job.name);
    if (!job.expected_generation.empty() && !request.replace)
        return make_error(
            ErrorCode::kAdapterExists,
            format("suffix: there is an adapter {} already, and replace is false", json_quote_short(job.name)),
            "suffix");
    job.metadata = request.metadata;
    job.replace = request.replace;
    job.activate = request.activate;
    job.recipe = request.recipe;
    job.recipe.seed = request.seed.value_or(std::hash<std::string>{}(job.id) % 1'000'000'007u);
    job.created_s = unix_time_s();
    const JobFolder folder = folder_of(job.id);
    TRY(folder.make());
    Result<proto::JobObject> made = add(job);
    if (!made.ok()) folder.remove();
    return made;
}

// The job has its folder.
Result<proto::JobObject> TrainingService::add(Job& job) {
    if (!job.init_from.empty()) TRY(keep_start(job));
    MutexLock lock(mutex_);
    TRY(check_room(job.tenant));
    forget_old();
    if (entries_.size() >= limits_.n_kept_max)
        return make_error(ErrorCode::kStorageFull,
                          format("{} jobs are kept, as many as there may be", entries_.size()));
    job.number = next_number_++;
    TRY(folder_of(job.id).save(job));
    Entry& entry = entries_.emplace(job.id, Entry{job, {}}).first->second;
    tell(entry, format("Created fine-tuning job: {}", job.id));
    tell(entry, format("Validating training file: {}{}{}", job.training_file,
                       job.validation_file.empty() ? "" : " and validation file: ", job.validation_file));
    changed_.notify_all();
    return object_of(entry);
}

// Of the key with the most jobs that have ended, removes the one that ended first: keys do not take each other's, and
// the training thread may still look at one that ended just now.
void TrainingService::forget_old() {
    const auto is_over = [&](const auto& one) {
        return is_ended(one.second.job.state) && !one.second.is_being_saved && one.second.n_waiting == 0 &&
               !disk_.is_busy(one.first);
    };
    while (entries_.size() >= limits_.n_kept_max) {
        std::map<std::string_view, uint64_t> n_of;  // by key
        for (const auto& one : entries_) n_of[one.second.job.tenant] += is_over(one) ? 1 : 0;
        // The greater, the sooner it goes; numbers of jobs grow.
        const auto rank_of = [&](const auto& one) {
            const Job& job = one.second.job;
            return std::tuple(n_of[job.tenant], -job.finished_s.value_or(0), ~job.number);
        };
        auto oldest = entries_.end();
        for (auto one = entries_.begin(); one != entries_.end(); ++one) {
            if (is_over(*one) && (oldest == entries_.end() || rank_of(*one) > rank_of(*oldest))) oldest = one;
        }
        if (oldest == entries_.end()) return;
        folder_of(oldest->first).remove();
        entries_.erase(oldest);
    }
}

}  // namespace lorad::server::training
