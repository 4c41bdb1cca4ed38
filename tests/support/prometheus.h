// A strict reader of Prometheus' text format 0.0.4: what a scraper may reject is an error here.
#pragma once

#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lorad::testing {

class PrometheusText {
  public:
    explicit PrometheusText(std::string_view text) {
        if (text.empty() || text.back() != '\n') fail("the last line does not end");
        while (!text.empty() && error_.empty()) {
            size_t end = text.find('\n');
            if (end == std::string_view::npos) break;
            line_ = text.substr(0, end);
            text.remove_prefix(end + 1);
            read_line();
        }
        if (error_.empty()) end_family();
    }

    bool ok() const { return error_.empty(); }
    const std::string& error() const { return error_; }
    // By name and labels as written, such as `lorad_steps_total{model_name="m"}`.
    const std::map<std::string, double>& samples() const { return samples_; }
    // By family.
    const std::map<std::string, std::string>& types() const { return types_; }
    size_t n_samples_of(const std::string& family) const {
        auto found = n_samples_.find(family);
        return found == n_samples_.end() ? 0 : found->second;
    }

  private:
    void fail(const std::string& what) {
        if (error_.empty()) error_ = what + ": " + std::string(line_);
    }
    static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
    static bool is_digit(char c) { return c >= '0' && c <= '9'; }

    std::string take_name(std::string_view& rest, bool with_colons) {
        size_t n = 0;
        while (n < rest.size() &&
               (is_letter(rest[n]) || (n > 0 && is_digit(rest[n])) || (with_colons && rest[n] == ':')))
            ++n;
        if (n == 0) fail("a name is expected");
        std::string name(rest.substr(0, n));
        rest.remove_prefix(n);
        return name;
    }

    void read_line() {
        if (line_.empty()) return fail("an empty line");
        std::string_view rest = line_;
        if (rest.starts_with("# HELP ")) {
            rest.remove_prefix(7);
            begin_family(take_name(rest, true));
            if (!rest.starts_with(' ') || rest.size() < 2) fail("HELP without a text");
        } else if (rest.starts_with("# TYPE ")) {
            rest.remove_prefix(7);
            std::string name = take_name(rest, true);
            if (name != family_) return fail("TYPE does not follow the HELP of its family");
            static const std::set<std::string_view> known{" counter", " gauge", " histogram"};
            if (!known.contains(rest)) return fail("unknown type");
            if (!types_.emplace(name, rest.substr(1)).second) fail("TYPE twice");
        } else if (rest.starts_with('#')) {
            fail("a comment that is neither HELP nor TYPE");
        } else {
            read_sample(rest);
        }
    }

    void begin_family(const std::string& name) {
        end_family();
        if (!families_.insert(name).second) fail("a family in two places");
        family_ = name;
    }

    void read_sample(std::string_view rest) {
        std::string name = take_name(rest, true);
        std::vector<std::pair<std::string, std::string>> labels = take_labels(rest);
        if (!error_.empty()) return;
        if (!rest.starts_with(' ')) return fail("a space before the value is expected");
        rest.remove_prefix(1);
        std::string number(rest);
        char* end = nullptr;
        double value = std::strtod(number.c_str(), &end);
        if (number.empty() || *end != '\0' || std::isspace(static_cast<unsigned char>(number[0])))
            return fail("no number");
        auto type = types_.find(family_);
        if (type == types_.end()) return fail("a sample without TYPE");
        if (!samples_.emplace(std::string(line_.substr(0, line_.size() - number.size() - 1)), value).second)
            return fail("a series twice");
        ++n_samples_[family_];
        if (type->second == "counter" && (!(value >= 0) || std::isinf(value))) return fail("a counter's value");
        if (type->second == "histogram") return read_histogram(name, labels, value);
        if (name != family_) fail("a sample of another family");
    }

    std::vector<std::pair<std::string, std::string>> take_labels(std::string_view& rest) {
        std::vector<std::pair<std::string, std::string>> labels;
        if (!rest.starts_with('{')) return labels;
        rest.remove_prefix(1);
        std::set<std::string> names;
        while (error_.empty() && !rest.starts_with('}')) {
            std::string name = take_name(rest, false);
            if (!names.insert(name).second) fail("a label twice");
            if (!rest.starts_with("=\"")) {
                fail("=\" is expected");
                break;
            }
            rest.remove_prefix(2);
            labels.emplace_back(name, take_text(rest));
            if (rest.starts_with(',')) {
                rest.remove_prefix(1);
            } else if (!rest.starts_with('}')) {
                fail("a label's end is expected");
            }
        }
        if (error_.empty()) rest.remove_prefix(1);
        return labels;
    }

    std::string take_text(std::string_view& rest) {
        std::string out;
        for (size_t i = 0; i < rest.size(); ++i) {
            if (rest[i] == '"') {
                rest.remove_prefix(i + 1);
                return out;
            }
            if (static_cast<unsigned char>(rest[i]) < 0x20) fail("a control character in a label");
            if (rest[i] == '\\') {
                ++i;
                if (i == rest.size() || (rest[i] != '\\' && rest[i] != '"' && rest[i] != 'n')) {
                    fail("an unknown escape");
                    return out;
                }
            }
            out += rest[i];
        }
        fail("a label that does not end");
        return out;
    }

    struct Histogram {
        double last_bound = -INFINITY, last_count = 0;
        std::optional<double> sum, count;
    };
    void read_histogram(const std::string& name, std::vector<std::pair<std::string, std::string>>& labels,
                        double value) {
        std::optional<double> bound;
        std::string key;
        for (const auto& [label, text] : labels) {
            if (label == "le") {
                bound = text == "+Inf" ? INFINITY : std::strtod(text.c_str(), nullptr);
            } else {
                key += label + "=" + text + ";";
            }
        }
        Histogram& histogram = histograms_[key];
        if (name == family_ + "_bucket") {
            if (!bound || !(*bound > histogram.last_bound)) return fail("bounds do not rise");
            if (value < histogram.last_count) return fail("buckets are not cumulative");
            histogram.last_bound = *bound;
            histogram.last_count = value;
        } else if (name == family_ + "_sum") {
            histogram.sum = value;
        } else if (name == family_ + "_count") {
            histogram.count = value;
        } else {
            fail("no part of a histogram");
        }
    }

    void end_family() {
        for (const auto& [key, histogram] : histograms_) {
            if (!std::isinf(histogram.last_bound)) fail("no +Inf bucket in " + family_);
            if (!histogram.sum || !histogram.count) fail("no sum or count in " + family_);
            if (histogram.count != histogram.last_count) fail("count and +Inf differ in " + family_);
        }
        histograms_.clear();
        if (!family_.empty() && !types_.contains(family_)) fail("no TYPE for " + family_);
    }

    std::string_view line_;
    std::string error_, family_;
    std::set<std::string> families_;
    std::map<std::string, std::string> types_;
    std::map<std::string, double> samples_;
    std::map<std::string, size_t> n_samples_;
    std::map<std::string, Histogram> histograms_;  // of the family, by its other labels
};

}  // namespace lorad::testing
