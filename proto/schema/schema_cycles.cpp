#include "proto/schema/schema_cycles.h"

#include <unordered_map>

namespace lorad::proto {
namespace {

// The references whose schemas the same value has to satisfy: the schema's own, and those of what "allOf" joins to it.
Result<std::vector<JsonValue>> same_value_references(const JsonValue& schema) {
    std::vector<JsonValue> open{schema}, references;
    while (!open.empty()) {
        const JsonValue at = open.back();
        open.pop_back();
        if (!at.is_object()) continue;
        TRY_ASSIGN(std::vector<JsonMember> members, at.as_object());
        for (const JsonMember& member : members) {
            if (is_reference(member.key)) references.push_back(member.value);
            if (member.key != "allOf" || !member.value.is_array()) continue;
            TRY_ASSIGN(std::vector<JsonValue> joined, member.value.as_array());
            open.insert(open.end(), joined.begin(), joined.end());
        }
    }
    return references;
}

enum class Visit : uint8_t { kNew, kOpen, kDone };

struct Step {
    size_t definition;
    std::vector<JsonValue> references;
    size_t n_followed = 0;
};

}  // namespace

Status refuse_endless_references(const std::vector<JsonValue>& definitions, SchemaRefs& refs) {
    std::unordered_map<uint32_t, size_t> by_id;
    for (size_t i = 0; i < definitions.size(); ++i) by_id.emplace(definitions[i].id(), i);
    std::vector<Visit> visits(definitions.size(), Visit::kNew);
    // Depth first, on a list of its own: chains may be as long as the schema.
    for (size_t first = 0; first < definitions.size(); ++first) {
        if (visits[first] != Visit::kNew) continue;
        std::vector<Step> path;
        const auto enter = [&](size_t definition) -> Status {
            visits[definition] = Visit::kOpen;
            TRY_ASSIGN(std::vector<JsonValue> references, same_value_references(definitions[definition]));
            path.push_back({definition, std::move(references)});
            return ok_status();
        };
        TRY(enter(first));
        while (!path.empty()) {
            Step& step = path.back();
            if (step.n_followed == step.references.size()) {
                visits[step.definition] = Visit::kDone;
                path.pop_back();
                continue;
            }
            const JsonValue reference = step.references[step.n_followed++];
            TRY_ASSIGN(JsonValue target, refs.target(reference));
            const auto found = by_id.find(target.id());
            if (found == by_id.end() || visits[found->second] == Visit::kDone) continue;
            if (visits[found->second] == Visit::kOpen)
                return reference.error("the schema refers to itself for the same value, so it describes none");
            TRY(enter(found->second));
        }
    }
    return ok_status();
}

}  // namespace lorad::proto
