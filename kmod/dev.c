// SPDX-License-Identifier: GPL-2.0
/*
 * dev.c: files of both ends: calls, mappings, poll. The interface is described in
 * uapi/linux/cnnring.h. User memory is copied before and after anything is done to the ring, never
 * in between, and no lock is held meanwhile.
 */
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/log2.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/nodemask.h>
#include <linux/poll.h>
#include <linux/uaccess.h>

#include "cnnring.h"
#include "compat.h"
#include "trace.h"

static const struct file_operations cnnring_fops;

static struct cnnring_end *cnnring_peer(const struct cnnring_end *end)
{
	return &end->ring->ends[end->role == CNNRING_PRODUCER ? CNNRING_CONSUMER :
								CNNRING_PRODUCER];
}

static bool cnnring_gone(const struct cnnring_end *end)
{
	return test_bit(CNNRING_END_GONE, &end->flags);
}

u32 cnnring_end_state(const struct cnnring_end *end)
{
	const struct cnnring_end *peer = cnnring_peer(end);
	u32 state = 0;

	if (test_bit(CNNRING_END_PENDING, &end->flags))
		state |= CNNRING_STATE_PENDING;
	if (test_bit(CNNRING_END_MADE, &peer->flags))
		state |= CNNRING_STATE_PEER;
	if (cnnring_gone(peer))
		state |= CNNRING_STATE_PEER_GONE;
	if (cnnring_gone(end))
		state |= CNNRING_STATE_DETACHED;
	return state;
}

static void cnnring_signal(struct cnnring_end *end, __poll_t events)
{
	set_bit(CNNRING_END_PENDING, &end->flags);
	wake_up_poll(&end->wait, events);
}

/* From now on the other end sees this one as gone. */
static void cnnring_leave(struct cnnring_end *end)
{
	if (test_and_set_bit(CNNRING_END_GONE, &end->flags))
		return;
	trace_cnnring_gone(end);
	if (cnnring_ready(end->ring))
		cnnring_count(end->ring);
	cnnring_signal(cnnring_peer(end), EPOLLIN | EPOLLRDNORM | EPOLLHUP | EPOLLRDHUP);
	wake_up_poll(&end->wait, EPOLLHUP | EPOLLRDHUP);
}

/* ---- calls ---- */

static long cnnring_ioc_version(struct cnnring_version __user *user)
{
	struct cnnring_version v;
	u32 abi;
	u64 missing;

	if (copy_from_user(&v, user, sizeof(v)))
		return -EFAULT;
	if (v.pad)
		return -EINVAL;
	abi = v.abi;
	missing = v.features & ~CNNRING_FEATURES;
	v.abi = CNNRING_ABI;
	v.features = CNNRING_FEATURES;
	if (copy_to_user(user, &v, sizeof(v)))
		return -EFAULT;
	if (abi != CNNRING_ABI)
		return -EPROTO;
	return missing ? -EOPNOTSUPP : 0;
}

static int cnnring_check_create(const struct cnnring_create *arg)
{
	if (arg->abi != CNNRING_ABI)
		return -EPROTO;
	if (arg->flags & ~CNNRING_CREATE_HUGE || arg->pad)
		return -EINVAL;
	if (arg->data_bytes < CNNRING_MIN_BYTES || arg->data_bytes > CNNRING_MAX_BYTES ||
	    !is_power_of_2(arg->data_bytes) || arg->data_bytes < PAGE_SIZE)
		return -EINVAL;
	if (arg->node != CNNRING_NODE_ANY &&
	    (arg->node >= MAX_NUMNODES || !node_online(arg->node)))
		return -EINVAL;
	return 0;
}

static long cnnring_ioc_create(struct cnnring_end *end, struct cnnring_create __user *user)
{
	struct cnnring_create arg;
	long error;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	error = cnnring_check_create(&arg);
	if (error)
		return error;
	error = cnnring_fill(end->ring, &arg);
	if (error && error != -ENOMEM && error != -EDQUOT && error != -ENOSPC)
		return error;
	/* on EFAULT a ring that was made stays */
	if (copy_to_user(user, &arg, sizeof(arg)))
		return -EFAULT;
	return error;
}

static long cnnring_ioc_peer_fd(struct cnnring_end *end, struct cnnring_peer_fd __user *user)
{
	struct cnnring_end *peer = cnnring_peer(end);
	struct cnnring_peer_fd arg;
	struct file *file;
	int fd;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	if (arg.flags || arg.pad)
		return -EINVAL;
	if (!cnnring_ready(end->ring))
		return -ENXIO;
	if (cnnring_gone(end))
		return -EPIPE;
	if (test_and_set_bit(CNNRING_END_MADE, &peer->flags))
		return -EBUSY;
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0)
		goto unmake;
	cnnring_get(end->ring);
	file = anon_inode_getfile("[cnnring]", &cnnring_fops, peer, O_RDWR);
	if (IS_ERR(file)) {
		cnnring_put(end->ring);
		put_unused_fd(fd);
		fd = PTR_ERR(file);
		goto unmake;
	}
	fd_install(fd, file);
	return fd;
unmake:
	clear_bit(CNNRING_END_MADE, &peer->flags);
	return fd;
}

static long cnnring_ioc_wake(struct cnnring_end *end)
{
	struct cnnring_end *peer = cnnring_peer(end);

	if (!cnnring_ready(end->ring))
		return -ENXIO;
	if (cnnring_gone(end) || cnnring_gone(peer))
		return -EPIPE;
	atomic64_inc(&end->wakes);
	atomic64_inc(&cnnring_stats.wakes);
	trace_cnnring_wake(end);
	cnnring_signal(peer, EPOLLIN | EPOLLRDNORM);
	return 0;
}

static long cnnring_ioc_ack(struct cnnring_end *end, struct cnnring_ack __user *user)
{
	struct cnnring_ack ack = {0};

	if (!cnnring_ready(end->ring))
		return -ENXIO;
	/* taken before the rest is looked at: what happens later is pending again */
	if (test_and_clear_bit(CNNRING_END_PENDING, &end->flags))
		ack.state = CNNRING_STATE_PENDING;
	ack.state |= cnnring_end_state(end) & ~CNNRING_STATE_PENDING;
	return copy_to_user(user, &ack, sizeof(ack)) ? -EFAULT : 0;
}

static long cnnring_ioc_detach(struct cnnring_end *end)
{
	if (!cnnring_ready(end->ring))
		return -ENXIO;
	cnnring_leave(end);
	return 0;
}

static long cnnring_ioc_query(struct cnnring_end *end, struct cnnring_query __user *user)
{
	struct cnnring *ring = end->ring;
	struct cnnring_query q;

	if (copy_from_user(&q, user, sizeof(q)))
		return -EFAULT;
	if (q.flags || q.pad)
		return -EINVAL;
	if (!cnnring_ready(ring))
		return -ENXIO;
	memset(&q, 0, sizeof(q));
	q.role = end->role;
	q.state = cnnring_end_state(end);
	q.data_bytes = ring->data_bytes;
	q.total_bytes = cnnring_bytes(ring);
	q.moved_bytes = cnnring_moved(ring);
	q.wakes[CNNRING_PRODUCER] = atomic64_read(&ring->ends[CNNRING_PRODUCER].wakes);
	q.wakes[CNNRING_CONSUMER] = atomic64_read(&ring->ends[CNNRING_CONSUMER].wakes);
	q.page_bytes = PAGE_SIZE;
	q.node = ring->node;
	q.huge_pages = ring->huge_pages;
	q.id = ring->id;
	return copy_to_user(user, &q, sizeof(q)) ? -EFAULT : 0;
}

static long cnnring_ioc_export(struct cnnring_end *end, struct cnnring_export __user *user)
{
	struct cnnring_export arg;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	if (arg.flags || arg.pad)
		return -EINVAL;
	if (!cnnring_ready(end->ring))
		return -ENXIO;
	return cnnring_export_fd(end->ring);
}

static long cnnring_ioctl_consumer(struct cnnring_end *end, unsigned int cmd, void __user *arg)
{
	switch (cmd) {
	case CNNRING_IOC_CREATE:
		return cnnring_ioc_create(end, arg);
	case CNNRING_IOC_PEER_FD:
		return cnnring_ioc_peer_fd(end, arg);
	case CNNRING_IOC_EXPORT:
		return cnnring_ioc_export(end, arg);
	}
	return -ENOTTY;
}

static long cnnring_ioctl(struct file *file, unsigned int cmd, unsigned long number)
{
	struct cnnring_end *end = file->private_data;
	void __user *arg = (void __user *)number;

	switch (cmd) {
	case CNNRING_IOC_VERSION:
		return cnnring_ioc_version(arg);
	case CNNRING_IOC_WAKE:
		return cnnring_ioc_wake(end);
	case CNNRING_IOC_ACK:
		return cnnring_ioc_ack(end, arg);
	case CNNRING_IOC_DETACH:
		return cnnring_ioc_detach(end);
	case CNNRING_IOC_QUERY:
		return cnnring_ioc_query(end, arg);
	}
	return end->role == CNNRING_CONSUMER ? cnnring_ioctl_consumer(end, cmd, arg) : -ENOTTY;
}

static __poll_t cnnring_poll(struct file *file, poll_table *wait)
{
	struct cnnring_end *end = file->private_data;
	__poll_t events = 0;
	u32 state;

	poll_wait(file, &end->wait, wait);
	if (!cnnring_ready(end->ring))
		return EPOLLERR;
	state = cnnring_end_state(end);
	if (state & CNNRING_STATE_PENDING)
		events |= EPOLLIN | EPOLLRDNORM;
	if (state & (CNNRING_STATE_PEER_GONE | CNNRING_STATE_DETACHED))
		events |= EPOLLHUP | EPOLLRDHUP;
	return events;
}

/* ---- mappings ---- */

/*
 * Pages are handed out as they are touched: that survives MADV_DONTNEED and lets drivers pin them,
 * for good too. The mapping holds the file, the file the ring, the ring its pages.
 */
static vm_fault_t cnnring_fault(struct vm_fault *vmf)
{
	const struct cnnring_end *end = vmf->vma->vm_file->private_data;
	const struct cnnring *ring = end->ring;

	if (vmf->pgoff >= ring->n_pages)
		return VM_FAULT_SIGBUS;
	vmf->page = ring->pages[vmf->pgoff];
	get_page(vmf->page);
	return 0;
}

static const struct vm_operations_struct cnnring_vm_ops = {
	.fault = cnnring_fault,
};

/* Is it within one of the four parts, and may this end write there? */
static int cnnring_part(const struct cnnring_end *end, struct vm_area_struct *vma,
			bool *writable)
{
	unsigned long first = vma->vm_pgoff, n = vma_pages(vma);

	if (first < CNNRING_DATA_PAGE) {
		*writable = first == (end->role == CNNRING_PRODUCER ? CNNRING_PRODUCER_PAGE :
								      CNNRING_CONSUMER_PAGE);
		return n == 1 ? 0 : -EINVAL;
	}
	*writable = end->role == CNNRING_PRODUCER;
	return first < end->ring->n_pages && n <= end->ring->n_pages - first ? 0 : -EINVAL;
}

static int cnnring_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct cnnring_end *end = file->private_data;
	bool writable;
	int error;

	if (!cnnring_ready(end->ring))
		return -ENXIO;
	if (cnnring_gone(end))
		return -EPIPE;
	error = cnnring_part(end, vma, &writable);
	if (error)
		return error;
	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	if ((vma->vm_flags & VM_WRITE) && !writable)
		return -EACCES;
	vm_flags_set(vma, VM_DONTEXPAND | VM_DONTCOPY | VM_DONTDUMP);
	vm_flags_clear(vma, VM_MAYEXEC | (writable ? 0 : VM_MAYWRITE));
	vma->vm_ops = &cnnring_vm_ops;
	return 0;
}

/* ---- files ---- */

static int cnnring_open(struct inode *inode, struct file *file)
{
	struct cnnring *ring;

	if ((file->f_mode & (FMODE_READ | FMODE_WRITE)) != (FMODE_READ | FMODE_WRITE))
		return -EACCES;
	ring = cnnring_new();
	if (!ring)
		return -ENOMEM;
	__set_bit(CNNRING_END_MADE, &ring->ends[CNNRING_CONSUMER].flags);
	file->private_data = &ring->ends[CNNRING_CONSUMER];
	return nonseekable_open(inode, file);
}

static int cnnring_release(struct inode *inode, struct file *file)
{
	struct cnnring_end *end = file->private_data;

	cnnring_leave(end);
	cnnring_put(end->ring);
	return 0;
}

static const struct file_operations cnnring_fops = {
	.owner		= THIS_MODULE,
	.open		= cnnring_open,
	.release	= cnnring_release,
	.unlocked_ioctl	= cnnring_ioctl,
	.compat_ioctl	= compat_ptr_ioctl,
	.poll		= cnnring_poll,
	.mmap		= cnnring_mmap,
	.llseek		= noop_llseek,
};

static struct miscdevice cnnring_misc = {
	.minor	= MISC_DYNAMIC_MINOR,
	.name	= "cnnring",
	.fops	= &cnnring_fops,
	.mode	= 0600,		/* the udev rule gives it to the daemon's group */
};

int cnnring_dev_init(void)
{
	return misc_register(&cnnring_misc);
}

void cnnring_dev_exit(void)
{
	misc_deregister(&cnnring_misc);
}
