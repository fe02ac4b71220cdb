# Tests and benchmarks of the kernels on a GPU: the CUDA toolkit and no other library, so that they run on a machine that
# has nothing else.
function(kvc_gpu_program name library)
  list(TRANSFORM ARGN PREPEND "${_kvc_root}/tests/runtime/kernels/cuda/")
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE ${library})
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wshadow ${_warnings})
endfunction()

set(_test kvc_cuda_references case_inputs.cpp gpu_backend.cpp gpu_main.cpp)
kvc_gpu_program(cuda_kernels_test ${_test}
  attention_cases.cpp case_tiles.cpp code_attention_cases.cpp combine_cases.cpp dense_cases.cpp gpu_attention_test.cpp rank_case.cpp rank_cases.cpp)
kvc_gpu_program(cuda_cache_gpu_test ${_test} budget_cases.cpp case_tiles.cpp code_cases.cpp gpu_cache_test.cpp
  open_cases.cpp paged_case.cpp paged_cases.cpp)
kvc_gpu_program(cuda_step_gpu_test ${_test} append_cases.cpp case_weight.cpp gpu_step_test.cpp product_cases.cpp
  sample_cases.cpp step_cases.cpp)

set(_bench kvc_cuda_kernels gpu_backend.cpp gpu_main.cpp gpu_timing.cpp)
kvc_gpu_program(cuda_kernels_bench ${_bench} gpu_attention_bench.cpp gpu_attention_rates.cpp gpu_bench_codes.cpp gpu_bench_inputs.cpp)
kvc_gpu_program(cuda_cache_bench ${_bench} gpu_budget_bench.cpp gpu_cache_bench.cpp)
kvc_gpu_program(cuda_step_bench ${_bench} gpu_step_bench.cpp)
# What kernels are compared with, from the toolkit or from KVC_CUDA_PEERS, a directory with include/ and lib/ such as
# nvidia/cu13 beside the torch package. Without development files a benchmark leaves these lines out.
set(KVC_CUDA_PEERS "" CACHE PATH "Directory with cuBLAS and cuSOLVER, where the toolkit has none")
function(kvc_gpu_peer program library header version)
  find_path(KVC_${library}_INCLUDE ${header} PATHS ${CUDAToolkit_INCLUDE_DIRS} ${KVC_CUDA_PEERS}/include NO_DEFAULT_PATH)
  find_library(KVC_${library}_LIBRARY NAMES ${library} lib${library}.so.${version}
               PATHS ${CUDAToolkit_LIBRARY_DIR} ${KVC_CUDA_PEERS}/lib NO_DEFAULT_PATH)
  if(KVC_${library}_INCLUDE AND KVC_${library}_LIBRARY)
    target_include_directories(${program} PRIVATE ${KVC_${library}_INCLUDE})
    target_link_libraries(${program} PRIVATE ${KVC_${library}_LIBRARY})
  else()
    message(STATUS "${program}: no development files of ${library}, so nothing is compared with it")
    target_compile_definitions(${program} PRIVATE KVC_NO_PEER)
  endif()
endfunction()
kvc_gpu_peer(cuda_kernels_bench cublas cublas_v2.h 13)
kvc_gpu_peer(cuda_cache_bench cusolver cusolverDn.h 12)
