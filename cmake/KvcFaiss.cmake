# FAISS as an imported target, where KVC_FAISS asks for it; Debian's libfaiss-dev is a static library without CMake
# files.
#   kvc_faiss  headers, the library, and LAPACK and BLAS for what LibTorch has not of them
if(NOT DEFINED KVC_FAISS)
  option(KVC_FAISS "Approximate search of donors' tokens (needs libfaiss-dev)" OFF)
endif()
if(KVC_FAISS)
  find_path(KVC_FAISS_INCLUDE_DIR faiss/IndexLSH.h)
  find_library(KVC_FAISS_LIBRARY faiss)
  find_library(KVC_LAPACK_LIBRARY lapack)
  find_library(KVC_BLAS_LIBRARY blas)
  if(NOT (KVC_FAISS_INCLUDE_DIR AND KVC_FAISS_LIBRARY AND KVC_LAPACK_LIBRARY AND KVC_BLAS_LIBRARY))
    message(FATAL_ERROR "KVC_FAISS: FAISS, LAPACK or BLAS not found. Install libfaiss-dev, or pass -DKVC_FAISS=OFF.")
  endif()
  add_library(kvc_faiss UNKNOWN IMPORTED)
  set_target_properties(kvc_faiss PROPERTIES IMPORTED_LOCATION "${KVC_FAISS_LIBRARY}"
    INTERFACE_LINK_LIBRARIES "${KVC_LAPACK_LIBRARY};${KVC_BLAS_LIBRARY}"
    # LibTorch calls its own matrix products by names that BLAS has too: whose library comes first is called.
    INTERFACE_LINK_OPTIONS "LINKER:--push-state,--no-as-needed,${KVC_TORCH_DIR}/lib/libtorch_cpu.so,--pop-state")
  if(NOT KVC_FAISS_INCLUDE_DIR STREQUAL "/usr/include")
    set_target_properties(kvc_faiss PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${KVC_FAISS_INCLUDE_DIR}")
  endif()
endif()
