#!/bin/bash
# Runs every part of the smoke on a machine with one CUDA GPU, each under its own time limit.
#   run.sh OUTPUT_FOLDER ["PART PART ..."]
# Libraries are taken from Python's `nvidia` wheels where python3 has them, else from the loader's path.
out=${1:-.}
here=$(cd "$(dirname "$0")" && pwd)
smoke=${SMOKE:-$here/target/release/gpu-smoke}
folders=()
links=$(mktemp -d)
for folder in $(python3 -c 'import glob, importlib.util as u; [print(f) for p in u.find_spec("nvidia").submodule_search_locations for f in sorted(glob.glob(p + "/*/lib"))]' 2>/dev/null); do
    folders+=(--lib-dir "$folder")
    LD_LIBRARY_PATH=$folder:$LD_LIBRARY_PATH
    # cudarc asks for the unversioned name first: without these links a toolkit on the machine would shadow the wheels.
    for stem in cublasLt cudnn nvrtc; do
        for file in "$folder"/lib$stem.so.*; do [ -e "$file" ] && ln -sf "$file" "$links/lib$stem.so"; done
    done
done
export LD_LIBRARY_PATH=$links:$LD_LIBRARY_PATH

part() {  # part NAME SECONDS ARGUMENTS...
    local name=$1 limit=$2 begin=$SECONDS
    shift 2
    [[ " $parts " == *" $name "* ]] || return 0
    timeout "$limit" "$smoke" "$@" >"$out/$name.txt" 2>&1
    echo "exit $? after $((SECONDS - begin)) s" >>"$out/$name.txt"
    echo "== $name: $(tail -1 "$out/$name.txt")"
}

blocks() {  # how many blocks of 288 MiB a folder can take, at most $2
    local free
    free=$(df --output=avail -m "$1" | tail -1)
    echo $((free / 320 < $2 ? free / 320 : $2))
}

{
    nvidia-smi
    nvidia-smi --query-gpu=name,driver_version,vbios_version,pcie.link.gen.current,pcie.link.width.current,memory.total --format=csv
    uname -r
    nproc
    df -h /dev/shm /tmp
    python3 --version
    ls -l "$links"
    ls "$(dirname "$(readlink -f "$links/libcudnn.so")")" /usr/lib/x86_64-linux-gnu/libcudnn* 2>&1
    ulimit -l
    cat /sys/fs/cgroup/memory.max 2>/dev/null
} >"$out/machine.txt" 2>&1
parts=${2:-start gemm bytes attention step step-disk}
part start 30 start
part gemm 150 gemm "${folders[@]}"
part bytes 60 bytes "${folders[@]}" --file /dev/shm/plimsoll-smoke.bin
part attention 60 attention "${folders[@]}"
part step 150 step "${folders[@]}" --file /dev/shm/plimsoll-smoke.bin --file-blocks "$(blocks /dev/shm 57)"
part step-disk 90 step "${folders[@]}" --short --file /tmp/plimsoll-smoke.bin --file-blocks "$(blocks /tmp 19)"
