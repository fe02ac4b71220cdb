# Reads versions.env into CMake variables of the same names.
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../versions.env" _kvc_version_lines REGEX "^[A-Z0-9_]+=")
foreach(_line IN LISTS _kvc_version_lines)
  string(REGEX MATCH "^([A-Z0-9_]+)=(.*)$" _ "${_line}")
  set(${CMAKE_MATCH_1} "${CMAKE_MATCH_2}")
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/../versions.env")
