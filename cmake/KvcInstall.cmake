# What `cmake --install` gives to C++ programs: find_package(kvconvert) with the target kvconvert::runtime.
# Component `library`: static libraries, headers and CMake files, without the programs.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Appends `target` and the project's libraries that it links, each once, to the list named `list`.
function(_kvc_with_dependencies target list)
  if("${target}" IN_LIST ${list})
    return()
  endif()
  get_target_property(_type ${target} TYPE)
  get_target_property(_imported ${target} IMPORTED)
  if(_imported OR NOT _type STREQUAL "STATIC_LIBRARY")
    return()
  endif()
  set(_found ${${list}} ${target})
  get_target_property(_links ${target} LINK_LIBRARIES)
  foreach(_link IN LISTS _links)
    if(TARGET ${_link})
      _kvc_with_dependencies(${_link} _found)
    endif()
  endforeach()
  set(${list} ${_found} PARENT_SCOPE)
endfunction()

set(_libraries "")
_kvc_with_dependencies(kvc_runtime _libraries)
foreach(_library IN LISTS _libraries)
  string(REGEX REPLACE "^kvc_" "" _name ${_library})
  set_target_properties(${_library} PROPERTIES EXPORT_NAME ${_name})
endforeach()
target_compile_features(kvc_core INTERFACE cxx_std_20)  # of those who include the headers
if(KVC_SANITIZE)
  target_link_options(kvc_core INTERFACE $<INSTALL_INTERFACE:-fsanitize=address,undefined>)
endif()

set(_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/kvconvert")
install(TARGETS ${_libraries} EXPORT kvconvertTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library)
install(EXPORT kvconvertTargets NAMESPACE kvconvert:: DESTINATION "${_cmake_dir}" COMPONENT library)
foreach(_directory core model runtime)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/${_directory}/" DESTINATION "include/kvconvert/${_directory}"
          COMPONENT library FILES_MATCHING PATTERN "*.h" PATTERN example EXCLUDE)
endforeach()
install(FILES "${PROJECT_SOURCE_DIR}/model/mkl_dispatch.cpp" DESTINATION share/kvconvert COMPONENT library)

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/kvconvertConfig.cmake.in" kvconvertConfig.cmake
                              INSTALL_DESTINATION "${_cmake_dir}")
write_basic_package_version_file(kvconvertConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/kvconvertConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/kvconvertConfigVersion.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/KvcTorch.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/KvcFaiss.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/KvcTextLibraries.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/KvcSentencepiece.cmake"
        DESTINATION "${_cmake_dir}" COMPONENT library)

# The wheel (pyproject.toml), component `python`: programs and operators beside the packages that start and load them.
set(_programs kvconvert kvcalibrate kvfisher kvexport kvvalidate kvrun)
if(SKBUILD)
  # Installed beside torch, they find its libraries without a path of this machine.
  set_target_properties(${_programs} PROPERTIES INSTALL_RPATH "$ORIGIN/../../torch/lib"
                        INSTALL_RPATH_USE_LINK_PATH OFF)
  install(TARGETS ${_programs} RUNTIME DESTINATION kvconvert_programs/bin COMPONENT python)
  # With another torch beside them, as in vLLM's environment, they use the one that they were built with.
  file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/torch_lib.txt" "${KVC_TORCH_DIR}/lib\n")
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/torch_lib.txt" DESTINATION kvconvert_programs COMPONENT python)
  install(TARGETS kvconvert_ops LIBRARY DESTINATION kvconvert COMPONENT python)
endif()
