# The sentencepiece library as an imported target; the distributions ship no CMake files for it.
#   kvc_sentencepiece  header and shared library
find_path(KVC_SENTENCEPIECE_INCLUDE_DIR sentencepiece_processor.h)
find_library(KVC_SENTENCEPIECE_LIBRARY sentencepiece)
if(NOT KVC_SENTENCEPIECE_INCLUDE_DIR OR NOT KVC_SENTENCEPIECE_LIBRARY)
  message(FATAL_ERROR "sentencepiece not found. Run scripts/setup.sh, or install libsentencepiece-dev "
          "(at least ${SENTENCEPIECE_MIN_VERSION}).")
endif()
add_library(kvc_sentencepiece SHARED IMPORTED)
set_target_properties(kvc_sentencepiece PROPERTIES
  IMPORTED_LOCATION "${KVC_SENTENCEPIECE_LIBRARY}"
  INTERFACE_INCLUDE_DIRECTORIES "${KVC_SENTENCEPIECE_INCLUDE_DIR}")
