// JSON schemas as clients send them, changed as trees (tests/fuzz/json_mutator.h), on the whole way from the text of a
// request to masks: read, said again for grammars as an answer's and as a function's, compiled and followed. Each is
// refused with a reason or works, and what is listed as not enforced is bounded.
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "proto/json/json.h"
#include "proto/schema/schema.h"
#include "tests/fuzz/grammar_run.h"
#include "tests/fuzz/json_mutator.h"

namespace {

using namespace lorad;
using fuzz::SchemaMutator;

// The text of the tree, where it fits; else nothing changes.
size_t write_back(const SchemaMutator::Json& tree, uint8_t* data, size_t size, size_t max_size) {
    const std::string text = tree.dump(-1, ' ', false, SchemaMutator::Json::error_handler_t::replace);
    if (text.size() > max_size) return size;
    std::memcpy(data, text.data(), text.size());
    return text.size();
}

std::string_view text_of(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
    SchemaMutator::Json tree = SchemaMutator::parsed(text_of(data, size));
    SchemaMutator(seed).mutate(tree);
    return write_back(tree, data, size, max_size);
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* a, size_t a_size, const uint8_t* b, size_t b_size,
                                            uint8_t* out, size_t max_size, unsigned int seed) {
    SchemaMutator::Json tree = SchemaMutator::parsed(text_of(a, a_size)),
                        other = SchemaMutator::parsed(text_of(b, b_size));
    SchemaMutator(seed).cross(tree, other);
    return write_back(tree, out, 0, max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const Result<JsonDocument> document = parse_json(text_of(data, size), {.name = "schema"});
    if (!document.ok()) return 0;
    fuzz::on_big_stack([&] {
        for (const bool is_arguments : {false, true}) {
            std::vector<std::string> not_enforced;
            const auto schema = proto::schema_for_grammar(
                document->root(), {.is_arguments = is_arguments, .is_closed = is_arguments}, not_enforced);
            CHECK(not_enforced.size() <= proto::kNotEnforcedMax);
            if (!schema.ok()) {
                CHECK(!schema.error().message.empty() && schema.error().message.size() < 3000);
                continue;
            }
            const std::string whole = schema->whole(is_arguments ? proto::kOneLineSwitches : proto::kAnswerSwitches);
            CHECK(parse_json(whole, {.max_depth = 1000}).ok());
            fuzz::compile_grammar(model::GrammarKind::kJsonSchema, whole);
        }
    });
    return 0;
}
