// Rows of a step by the sequence whose state they go on from: StateRun.
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer StateRunRef { StateRun v; };

StateRun run_at(uint64_t runs, uint index) { return StateRunRef(runs + uint64_t(index) * 32).v; }
StateRun row_run(uint64_t runs, uint64_t step, uint t) { return run_at(runs, step_row(step, t).v.state_run); }
