#!/bin/sh
# The system libraries that Open3D's windows and pictures need. Everything else works without them.
packages="libusb-1.0-0 libgl1 libegl1 libx11-6 libgomp1 libvulkan1 mesa-vulkan-drivers"
missing=""
for package in $packages; do
  dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
line="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive $line -qq >/dev/null; } ||
    echo "3-D pictures need system libraries that could not be installed; try: $line"
else
  echo "for 3-D pictures, type: sudo $line"
fi
exit 0
