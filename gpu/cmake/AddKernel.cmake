# Compiles GLSL to SPIR-V with glslc and puts the modules into the binary, as the assembler reads them.
#
#   add_kernel(gpu matmul.comp)                                            module "matmul"
#   add_kernel(gpu matmul.comp NAME matmul_cm DEFINES COOPMAT=1 TILE=64 REQUIRES coopmat)
#
# NAME      the name that kernel_spirv() finds the module by; the file's stem if absent
# DEFINES   macros of this variant
# REQUIRES  features that the compiler must have, each with a shader in gpu/cmake/probes/<feature>.comp that shows it;
#           without one of them the module is left out and the configure step says so
# OPTIMIZE  O (the default), O0 or Os; the default is O0 where cooperative matrices are required, because the optimizers of
#           some releases break them
#
# lorad_kernel_registry(VAR) puts the source file that holds all modules added so far into VAR.

set(LORAD_KERNEL_DIR ${CMAKE_BINARY_DIR}/generated/gpu/kernels)
set(LORAD_PROBE_DIR ${CMAKE_CURRENT_LIST_DIR}/probes)
file(MAKE_DIRECTORY ${LORAD_KERNEL_DIR})
set_property(GLOBAL PROPERTY LORAD_KERNELS "")
set_property(GLOBAL PROPERTY LORAD_KERNELS_LEFT_OUT "")

find_program(LORAD_GLSLC glslc HINTS ${LORAD_TOOLCHAIN_DIR}/bin NO_CACHE)
if(NOT LORAD_GLSLC)
    message(FATAL_ERROR "glslc not found; run deploy/install-deps.sh, or install the package glslc")
endif()
find_program(LORAD_SPIRV_VAL spirv-val HINTS ${LORAD_TOOLCHAIN_DIR}/bin NO_CACHE)
execute_process(COMMAND ${LORAD_GLSLC} --version OUTPUT_VARIABLE glslc_version OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REGEX MATCH "^[^\n]*" glslc_version "${glslc_version}")
message(STATUS "shader compiler: ${LORAD_GLSLC} (${glslc_version})")

# One attempt for each feature; is the installed spirv-val too old for a module, that module is not validated.
file(GLOB probes CONFIGURE_DEPENDS ${LORAD_PROBE_DIR}/*.comp)
foreach(probe IN LISTS probes)
    cmake_path(GET probe STEM feature)
    set(spv ${CMAKE_BINARY_DIR}/CMakeFiles/probe_${feature}.spv)
    execute_process(COMMAND ${LORAD_GLSLC} --target-env=vulkan1.3 -o ${spv} ${probe}
        RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
    set(LORAD_GLSLC_HAS_${feature} FALSE)
    set(LORAD_SPIRV_VAL_HAS_${feature} FALSE)
    if(status EQUAL 0)
        set(LORAD_GLSLC_HAS_${feature} TRUE)
        if(LORAD_SPIRV_VAL)
            execute_process(COMMAND ${LORAD_SPIRV_VAL} --target-env vulkan1.3 ${spv}
                RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
            if(status EQUAL 0)
                set(LORAD_SPIRV_VAL_HAS_${feature} TRUE)
            endif()
        endif()
        message(STATUS "shader compiler: has ${feature}")
    else()
        message(STATUS "shader compiler: lacks ${feature}; kernel variants with it are left out (deploy/install-deps.sh "
            "fetches a newer compiler)")
    endif()
endforeach()

function(add_kernel target file)
    cmake_parse_arguments(PARSE_ARGV 2 kernel "" "NAME;OPTIMIZE" "DEFINES;REQUIRES")
    if(kernel_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "add_kernel(${target} ${file}): unknown ${kernel_UNPARSED_ARGUMENTS}")
    endif()
    if(NOT file MATCHES "\\.comp$")
        string(APPEND file ".comp")
    endif()
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_LIST_DIR} OUTPUT_VARIABLE source)
    if(NOT EXISTS ${source})
        message(FATAL_ERROR "add_kernel(${target} ${file}): there is no ${source}")
    endif()
    cmake_path(GET source STEM stem)
    if(NOT kernel_NAME)
        set(kernel_NAME ${stem})
    endif()
    get_property(known GLOBAL PROPERTY LORAD_KERNELS)
    if(kernel_NAME IN_LIST known)
        message(FATAL_ERROR "add_kernel(${target} ${file}): the name ${kernel_NAME} is taken; give this variant a NAME")
    endif()

    set(optimize O)
    set(validate ${LORAD_SPIRV_VAL})
    foreach(feature IN LISTS kernel_REQUIRES)
        if(NOT DEFINED LORAD_GLSLC_HAS_${feature})
            message(FATAL_ERROR "add_kernel(${target} ${file}): no probe for ${feature} in ${LORAD_PROBE_DIR}")
        endif()
        if(NOT LORAD_GLSLC_HAS_${feature})
            set_property(GLOBAL APPEND PROPERTY LORAD_KERNELS_LEFT_OUT ${kernel_NAME})
            return()
        endif()
        if(NOT LORAD_SPIRV_VAL_HAS_${feature})
            set(validate "")
        endif()
        if(feature MATCHES "^coopmat")
            set(optimize O0)
        endif()
    endforeach()
    if(kernel_OPTIMIZE)
        set(optimize ${kernel_OPTIMIZE})
    endif()

    list(TRANSFORM kernel_DEFINES PREPEND -D)
    set(spv ${LORAD_KERNEL_DIR}/${kernel_NAME}.spv)
    set(compile ${LORAD_GLSLC} --target-env=vulkan1.3 -fshader-stage=compute -${optimize} -Werror
        -I ${CMAKE_SOURCE_DIR} ${kernel_DEFINES} ${source})
    set(check "")
    if(validate)
        set(check COMMAND ${validate} --target-env vulkan1.3 --scalar-block-layout ${spv})
    endif()
    add_custom_command(OUTPUT ${spv}
        COMMAND ${compile} -MD -MF ${spv}.d -MT ${spv} -o ${spv}
        ${check}
        DEPENDS ${source} ${LORAD_GLSLC}
        DEPFILE ${spv}.d
        COMMENT "GLSL ${kernel_NAME}" VERBATIM)
    set_property(GLOBAL APPEND PROPERTY LORAD_KERNELS ${kernel_NAME})
    set_property(GLOBAL APPEND PROPERTY LORAD_KERNEL_FILES ${spv})
endfunction()

function(lorad_kernel_registry out)
    get_property(names GLOBAL PROPERTY LORAD_KERNELS)
    get_property(files GLOBAL PROPERTY LORAD_KERNEL_FILES)
    get_property(left_out GLOBAL PROPERTY LORAD_KERNELS_LEFT_OUT)
    list(SORT names)
    set(arrays "")
    set(entries "")
    foreach(name IN LISTS names)
        string(APPEND arrays "MODULE(${name}, \"${LORAD_KERNEL_DIR}/${name}.spv\")\n")
        string(APPEND entries "    {\"${name}\", lorad_spirv_${name}, lorad_spirv_${name}_end},\n")
    endforeach()
    list(LENGTH names count)
    set(source ${CMAKE_BINARY_DIR}/generated/gpu/kernel_modules.cpp)
    configure_file(${CMAKE_SOURCE_DIR}/gpu/cmake/kernel_modules.cpp.in ${source} @ONLY)
    # What the assembler reads is tied to it by hand, and it is compiled by itself: caches of compilers do not see those files.
    set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS "${files}" SKIP_UNITY_BUILD_INCLUSION ON)
    message(STATUS "kernels: ${count} modules")
    if(left_out)
        list(JOIN left_out ", " left_out)
        message(STATUS "kernels: left out because the shader compiler is too old: ${left_out}")
    endif()
    set(${out} ${source} PARENT_SCOPE)
endfunction()
