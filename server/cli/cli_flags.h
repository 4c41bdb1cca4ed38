// The flags of the commands that run once and end: each class adds its command's flags, reads the command line into the
// arguments of cli.h, and runs it; the result is the exit status. They outlive the parsing. main.cpp only.
#pragma once

#include "server/cli/cli.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lorad::server {

class CheckCommand {
  public:
    explicit CheckCommand(CLI::App& app);
    Result<int> run() const;

  private:
    CheckArguments arguments_;
};

class DevicesCommand {
  public:
    explicit DevicesCommand(CLI::App& app);
    Result<int> run() const;

  private:
    DeviceArguments device_;
    bool as_json_ = false;
};

class LogitsCommand {
  public:
    explicit LogitsCommand(CLI::App& app);
    Result<int> run() const;

  private:
    LogitsArguments arguments_;
};

class GenerateCommand {
  public:
    explicit GenerateCommand(CLI::App& app);
    Result<int> run() const;

  private:
    GenerateArguments arguments_;
    CLI::Option* prompt_ = nullptr;
};

class ProfileCommand {
  public:
    explicit ProfileCommand(CLI::App& app);
    Result<int> run() const;

  private:
    ProfileArguments arguments_;
};

class QuantizeCommand {
  public:
    explicit QuantizeCommand(CLI::App& app);
    Result<int> run() const;

  private:
    QuantizeArguments arguments_;
};

}  // namespace lorad::server
