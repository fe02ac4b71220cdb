# Tests and benchmarks of a decoding step on a GPU: the CUDA toolkit and no other library.
set(_steps "${_kvc_root}/tests/runtime/kernels/cuda")
add_executable(cuda_step_gpu_test
  ${_steps}/append_cases.cpp
  ${_steps}/case_inputs.cpp
  ${_steps}/gpu_main.cpp
  ${_steps}/gpu_memory.cpp
  ${_steps}/gpu_step_test.cpp
  ${_steps}/sample_cases.cpp
  ${_steps}/step_cases.cpp)
add_executable(cuda_step_bench ${_steps}/gpu_main.cpp ${_steps}/gpu_memory.cpp ${_steps}/gpu_step_bench.cpp ${_steps}/gpu_timing.cpp)
target_link_libraries(cuda_step_gpu_test PRIVATE kvc_cuda_references)
target_link_libraries(cuda_step_bench PRIVATE kvc_cuda_kernels)
foreach(_program cuda_step_gpu_test cuda_step_bench)
  target_compile_options(${_program} PRIVATE -Wall -Wextra -Wshadow -Werror)
endforeach()
