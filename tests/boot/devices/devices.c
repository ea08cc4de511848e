// SPDX-License-Identifier: GPL-2.0
// Stands in for a board's drivers as far as systemd/60-skipd.rules sees them: nodes that open and read as empty, and two attributes of clocks that
// only root may read until a rule says otherwise. The kernel of tools/boot-test --qemu loads it.

#include <linux/cdev.h>
#include <linux/cpu.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
#define new_class(name) class_create(THIS_MODULE, name)
#else
#define new_class(name) class_create(name)
#endif

// Nodes by class; the class's name is also that of their numbers in /proc/devices, by which DeviceAllow knows them.
static const char *const gpu[] = { "nvgpu!igpu0!ctrl", "nvgpu!igpu0!dbg", "nvgpu!igpu0!sched" };
static const char *const host[] = { "nvhost-gpu", "nvhost-dbg-gpu" };
static const char *const memory[] = { "nvmap", "host1x-fence" };

static struct group {
	const char *name;
	const char *const *nodes;
	unsigned int count;
	struct class *class;
	dev_t first;
	struct cdev cdev;
} groups[] = {
	{ "nvgpu", gpu, ARRAY_SIZE(gpu) },
	{ "nvhost", host, ARRAY_SIZE(host) },
	{ "boot-test", memory, ARRAY_SIZE(memory) },
};

static ssize_t nothing(struct file *file, char __user *to, size_t count, loff_t *at)
{
	return 0;
}

static const struct file_operations empty = { .owner = THIS_MODULE, .read = nothing };

static ssize_t clock_show(struct device *device, struct device_attribute *attribute, char *to)
{
	return sysfs_emit(to, "665600000\n");
}

static DEVICE_ATTR(min_freq, 0400, clock_show, NULL);
static struct attribute *memory_clock_attrs[] = { &dev_attr_min_freq.attr, NULL };
ATTRIBUTE_GROUPS(memory_clock);

static ssize_t cpu_clock_show(struct kobject *kobject, struct kobj_attribute *attribute, char *to)
{
	return sysfs_emit(to, "2201600\n");
}

static struct kobj_attribute cpu_clock = __ATTR(cpuinfo_cur_freq, 0400, cpu_clock_show, NULL);
static struct class *devfreq;
static struct kobject *cpufreq;

static int start(void)
{
	unsigned int i, node;

	for (i = 0; i < ARRAY_SIZE(groups); i++) {
		struct group *group = &groups[i];
		int error = alloc_chrdev_region(&group->first, 0, group->count, group->name);

		if (error)
			return error;
		cdev_init(&group->cdev, &empty);
		error = cdev_add(&group->cdev, group->first, group->count);
		if (error)
			return error;
		group->class = new_class(group->name);
		if (IS_ERR(group->class))
			return PTR_ERR(group->class);
		for (node = 0; node < group->count; node++)
			device_create(group->class, NULL, group->first + node, NULL, "%s", group->nodes[node]);
	}
	devfreq = new_class("devfreq");
	if (IS_ERR(devfreq))
		return PTR_ERR(devfreq);
	device_create_with_groups(devfreq, NULL, MKDEV(0, 0), NULL, memory_clock_groups, "bwmgr");

	cpufreq = kobject_create_and_add("cpufreq", &get_cpu_device(0)->kobj);
	if (!cpufreq || sysfs_create_file(cpufreq, &cpu_clock.attr))
		return -ENOMEM;
	return kobject_uevent(&get_cpu_device(0)->kobj, KOBJ_CHANGE);
}

// The machine is thrown away with it: there is no way to unload it, nor to undo half of it.
module_init(start);
MODULE_DESCRIPTION("a board's device nodes without the board");
MODULE_LICENSE("GPL");
