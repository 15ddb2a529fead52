// The same user in C++.
#include <cstdio>
#include <cstring>
#include <memory>
#include <weft/weft.h>

namespace {

struct destroy {
  void operator()(weft_program *program) const { weft_program_destroy(program); }
  void operator()(weft_report *report) const { weft_report_destroy(report); }
};

int fail(const weft_error &error) {
  std::fprintf(stderr, "%s\n%s\n", error.message, error.hint);
  return 1;
}

} // namespace

int main() {
  weft_shape shape = {4, 0, 8, WEFT_PLACEMENT_LOOP, nullptr};
  weft_error error;
  weft_program *made = nullptr;
  if (weft_generate(nullptr, "1F1B", &shape, &made, &error) != WEFT_OK) {
    return fail(error);
  }
  std::unique_ptr<weft_program, destroy> table(made);
  if (weft_lower(nullptr, table.get(), nullptr, &made, &error) != WEFT_OK) {
    return fail(error);
  }
  std::unique_ptr<weft_program, destroy> program(made);
  weft_report *found = nullptr;
  if (weft_verify(nullptr, program.get(), nullptr, &found, &error) != WEFT_OK) {
    return fail(error);
  }
  std::unique_ptr<weft_report, destroy> report(found);
  std::puts(report->ok ? "cannot hang" : report->findings[0].message);
  return 0;
}
