//%% How works, the rows of a tile of one KV head, are shared out among blocks.
//% local cluster = library("split").cluster(schedule)
//% if cluster then
constexpr int CLUSTER = $(cluster); // blocks that share a work's keys
//% else
constexpr int TOGETHER = $(schedule.together); // KV heads whose blocks walk through the keys side by side
constexpr int HEAD_GROUPS = HEADS_KV / TOGETHER;
//% end
