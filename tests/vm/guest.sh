# The script of a virtual machine: names, addresses and the ssh server; then "ready" on the console. init.c runs it.
#   vk_name  the machine's name        vk_cards  NAME=MAC=ADDRESS/BITS of each card, with commas between
set -u
echo "$vk_name" >/proc/sys/kernel/hostname
ip link set lo up
for path in /sys/class/net/*; do
    old=${path##*/}
    for card in $(echo "$vk_cards" | tr , ' '); do
        name=${card%%=*} mac=${card#*=}
        address=${mac#*=} mac=${mac%%=*}
        [ "$(cat "$path/address")" = "$mac" ] || continue
        ip link set "$old" name "$name"
        ip address add "$address" dev "$name"
        ip link set "$name" up
    done
done
mkdir -p /run/sshd
/usr/sbin/sshd -f "$vk_share/sshd_config" -E /dev/console
echo "vm: $vk_name is ready" >/dev/console
while sleep 1000; do :; done
