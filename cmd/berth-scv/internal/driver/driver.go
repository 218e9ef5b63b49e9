// Package driver asks NVIDIA's driver, through NVML, what the cards of this machine are and what is wrong with them.
//
// It asks, and no more: it keeps no deadline, since a call into C cannot be ended, and decides nothing that lasts longer than a reading.
package driver

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	scv "github.com/berth-scheduler/berth/api/scv/v1alpha1"
	"github.com/berth-scheduler/berth/cmd/berth-scv/internal/cards"
)

const (
	// eventWait is how long is waited for an event, in ms: those that are there come at once, and the next reading gets those that are not.
	eventWait = 1
	// maxEvents are taken in one reading.
	maxEvents = 256
	// lostFor is how long a session goes on while a card is lost: what the driver still tells of it is taken, and that it is back may be seen by another session only.
	lostFor = time.Minute
)

// Driver asks the driver. Its methods may not be called concurrently.
type Driver struct {
	nvml    nvml.Interface
	loaded  func() bool // whether the kernel has the driver, as far as that can be seen without its library
	open    *session    // nil: none
	version string      // the last that was told
	away    bool        // the driver was not loaded since the session before
	load    int
	most    int         // cards that there have been
	held    []cards.XID // errors that no reading has told of yet
	missed  bool        // there may have been others
}

// session is from an initialization of NVML to its end.
type session struct {
	version    string                 // "": not told yet
	migs, rows bool                   // there is a function for it: a missing one would end the process
	reserved   bool                   // there is one that tells what of the memory the driver reserves
	events     nvml.EventSet          // nil: none yet
	noEvents   bool                   // there are none to be had
	watched    map[string]nvml.Device // cards with events, by ID
	lost       map[string]bool        // those of them that have been lost since: their events may have ended
	lostSince  time.Time              // 0: no card is lost
}

// New returns a Driver that asks through an NVML that nobody else uses. Loaded says whether the kernel has the driver, as [Loaded] does.
func New(n nvml.Interface, loaded func() bool) *Driver { return &Driver{nvml: n, loaded: loaded} }

// Loaded reports whether the kernel of this machine has the driver. It can be seen in every container, whatever that has of the driver.
func Loaded() bool {
	_, err := os.Stat("/proc/driver/nvidia/version")
	return err == nil
}

// Read asks for everything. It may never return, if the driver hangs. A machine without a driver is no error. A panic of the library is one, which names it.
func (d *Driver) Read() (r cards.Reading, err error) {
	defer func() {
		if p := recover(); p != nil {
			r, err = cards.Reading{}, fmt.Errorf("ask the driver: panic: %v", p)
		}
	}()
	if d.open == nil {
		if ret := d.nvml.Init(); ret != nvml.SUCCESS {
			return d.without("initialize NVML", ret)
		}
		if err := d.begin(); err != nil {
			return cards.Reading{}, err
		}
	}
	d.tellVersion()
	n, ret := d.nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		// What the driver has told of ends with the session, and the next reading that succeeds tells of it.
		xids, note := d.xids(nil)
		d.held, d.missed = append(d.held, xids...), d.missed || note != ""
		d.Close()
		return d.without("count the cards", ret)
	}
	r = cards.Reading{Driver: d.open.version, Load: d.load}
	lost := n < d.most
	d.most = max(d.most, n)
	handles := make(map[string]nvml.Device)
	for i := range n {
		device, ret := d.nvml.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS || device == nil {
			lost = true
			r.Notes = append(r.Notes, fmt.Sprintf("card %d has no handle: %v", i, ret))
			continue
		}
		id, ret := device.GetUUID()
		if ret != nvml.SUCCESS || id == "" {
			lost = true
			r.Notes = append(r.Notes, fmt.Sprintf("card %d has no UUID: %v", i, ret))
			continue
		}
		handles[id] = device
		c := d.card(device, id, i)
		if c.Reason == cards.ReasonLost {
			lost, d.open.lost[id] = true, true
		}
		r.Cards = append(r.Cards, c)
	}
	for id := range d.open.watched {
		if handles[id] == nil {
			d.open.lost[id] = true
		}
	}
	xids, note := d.xids(handles)
	if note != "" {
		r.Notes = append(r.Notes, note)
	}
	r.XIDs, r.Missed = append(d.held, xids...), d.missed || note != ""
	d.held, d.missed = nil, false
	switch now := time.Now(); {
	case !lost:
		d.open.lostSince = time.Time{}
	case d.open.lostSince.IsZero():
		d.open.lostSince = now
	case now.Sub(d.open.lostSince) >= lostFor:
		d.Close()
	}
	return r, nil
}

// Close ends what Read has begun. The next Read begins anew.
func (d *Driver) Close() {
	if d.open == nil {
		return
	}
	d.dropEvents()
	d.open = nil
	// What it returns says no more than what is found out by the next initialization.
	_ = d.nvml.Shutdown()
}

// without returns what there is to say if NVML cannot be used.
func (d *Driver) without(what string, ret nvml.Return) (cards.Reading, error) {
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND: // or it could not be opened, for whatever reason
		return cards.Reading{Absent: cards.ReasonNoLibrary, Unseen: d.loaded()}, nil
	case nvml.ERROR_DRIVER_NOT_LOADED:
		d.away = true
		return cards.Reading{Absent: cards.ReasonNotLoaded}, nil
	case nvml.ERROR_GPU_NOT_FOUND:
		return cards.Reading{Absent: cards.ReasonNotLoaded}, nil
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return cards.Reading{Absent: cards.ReasonMismatch, Mismatch: true}, nil
	}
	return cards.Reading{}, fmt.Errorf("%s: %v", what, ret)
}

// begin opens a session, when NVML has been initialized. If it cannot, it undoes that.
func (d *Driver) begin() error {
	defer func() {
		if d.open == nil {
			_ = d.nvml.Shutdown()
		}
	}()
	all := d.nvml.Extensions()
	if all == nil {
		return errors.New("look for the functions of NVML: there is no way to")
	}
	s := &session{watched: make(map[string]nvml.Device), lost: make(map[string]bool)}
	s.migs = all.LookupSymbol("nvmlDeviceGetMigMode") == nil
	s.rows = all.LookupSymbol("nvmlDeviceGetRemappedRows") == nil
	s.reserved = all.LookupSymbol("nvmlDeviceGetMemoryInfo_v2") == nil
	if d.away {
		d.reloaded()
		d.version = "" // whatever it is now, it is counted
	}
	d.away, d.open = false, s
	return nil
}

// tellVersion asks for the version of the driver until it is told. Errors of the driver end with it: it has been loaded anew if it was away, or is another one. If it was
// loaded anew between two readings, and is the same, that cannot be seen.
func (d *Driver) tellVersion() {
	if d.open.version != "" {
		return
	}
	version, ret := d.nvml.SystemGetDriverVersion()
	if ret != nvml.SUCCESS || version == "" {
		return
	}
	if d.version != "" && version != d.version {
		d.reloaded()
	}
	d.version, d.open.version = version, version
}

// reloaded says that the driver was loaded anew.
func (d *Driver) reloaded() {
	d.load++
	d.held, d.missed = nil, false
}

// answers sorts what is said of one card.
type answers struct {
	lost, partial bool
	reasons       []string
}

// ok reports whether there is a value. If the card does not support it there is none, and nothing is wrong. That is all that NVML documents as such, for what is asked here.
func (a *answers) ok(what string, ret nvml.Return) bool {
	switch ret {
	case nvml.SUCCESS:
		return true
	case nvml.ERROR_NOT_SUPPORTED:
	case nvml.ERROR_GPU_IS_LOST:
		a.lost = true
	case nvml.ERROR_RESET_REQUIRED:
		a.partial = true
		a.say(cards.ReasonReset)
	default:
		a.mute(what, ret)
	}
	return false
}

// mute says that a value is not told that has to be.
func (a *answers) mute(what string, ret nvml.Return) {
	a.partial = true
	a.say(fmt.Sprintf("does not tell its %s: %v", what, ret))
}

func (a *answers) say(reason string) {
	if !slices.Contains(a.reasons, reason) {
		a.reasons = append(a.reasons, reason)
	}
}

// card asks for everything about one card.
func (d *Driver) card(device nvml.Device, id string, index int) cards.Card {
	c := cards.Card{Card: scv.Card{ID: id, Index: int32(index)}}
	var a answers
	if name, ret := device.GetName(); a.ok("name", ret) {
		c.Model = name
	}
	if total, free, ret := d.memory(device); a.ok("memory", ret) {
		c.TotalMemoryMiB, c.FreeMemoryMiB = int64(total>>20), int64(min(free, total)>>20)
	} else if ret == nvml.ERROR_NOT_SUPPORTED {
		a.mute("memory", ret) // pods are placed by it
	}
	if clock, ret := device.GetMaxClockInfo(nvml.CLOCK_MEM); a.ok("memory clock", ret) {
		c.ClockMHz = int64(clock)
	}
	if clock, ret := device.GetMaxClockInfo(nvml.CLOCK_SM); a.ok("clock", ret) {
		c.CoreMHz = int64(clock)
	} else if clock, ret := device.GetMaxClockInfo(nvml.CLOCK_GRAPHICS); a.ok("clock", ret) {
		c.CoreMHz = int64(clock)
	}
	if generation, ret := device.GetMaxPcieLinkGeneration(); a.ok("link's generation", ret) {
		if width, ret := device.GetMaxPcieLinkWidth(); a.ok("link's width", ret) {
			c.BandwidthMBps = bandwidth(generation, width)
		}
	}
	if limit, ret := device.GetPowerManagementLimit(); a.ok("power limit", ret) {
		c.PowerWatts = int64(limit) / 1000
	}

	if d.open.migs {
		if mode, _, ret := device.GetMigMode(); a.ok("MIG mode", ret) && mode == nvml.DEVICE_MIG_ENABLE {
			a.say(cards.ReasonPartitioned)
		}
	}
	if n, ret := device.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); a.ok("memory errors (ECC)", ret) && n > 0 {
		a.say(cards.ReasonECC)
	}
	if pending, ret := device.GetRetiredPagesPendingStatus(); a.ok("retired pages", ret) && pending == nvml.FEATURE_ENABLED {
		a.say(cards.ReasonPagesPending)
	}
	if d.open.rows {
		if _, _, pending, failed, ret := device.GetRemappedRows(); a.ok("remapped rows", ret) {
			if failed {
				a.say(cards.ReasonRemapFailed)
			}
			if pending {
				a.say(cards.ReasonRowsPending)
			}
		}
	}
	d.watch(device, id, &a)

	c.Partial, c.Reason = a.partial, strings.Join(a.reasons, "; ")
	if a.lost {
		c.Partial, c.Reason = true, cards.ReasonLost
	}
	return c
}

// memory asks how much memory programs can have of a card, and how much of that is free, in bytes. What the driver reserves for itself is in neither, if it tells that: else the total has it, on some drivers, though no program can have it.
func (d *Driver) memory(device nvml.Device) (total, free uint64, ret nvml.Return) {
	if d.open.reserved {
		memory, ret := device.GetMemoryInfo_v2()
		switch ret {
		case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH:
		default:
			return memory.Total - min(memory.Reserved, memory.Total), memory.Free, ret
		}
	}
	memory, ret := device.GetMemoryInfo()
	return memory.Total, memory.Free, ret
}

// watch has the driver tell of a card's errors, once in a session, and again when a card is back that was lost.
func (d *Driver) watch(device nvml.Device, id string, a *answers) {
	s := d.open
	if s.noEvents || s.watched[id] != nil && !s.lost[id] || a.lost {
		return
	}
	if s.events == nil {
		set, ret := d.nvml.EventSetCreate()
		if s.noEvents = ret == nvml.ERROR_NOT_SUPPORTED; s.noEvents || !a.ok("errors (XID)", ret) || set == nil {
			return
		}
		s.events = set
	}
	types, ret := device.GetSupportedEventTypes()
	if !a.ok("kinds of events", ret) || types&nvml.EventTypeXidCriticalError == 0 {
		return
	}
	if a.ok("errors (XID)", device.RegisterEvents(nvml.EventTypeXidCriticalError, s.events)) {
		s.watched[id] = device
		delete(s.lost, id)
	}
}

// xids takes the errors that the driver has told of. The note says why there may be others.
func (d *Driver) xids(handles map[string]nvml.Device) (xids []cards.XID, note string) {
	s := d.open
	if s.events == nil || len(s.watched) == 0 {
		return nil, ""
	}
	for range maxEvents {
		event, ret := s.events.Wait(eventWait)
		if ret == nvml.ERROR_TIMEOUT {
			return xids, ""
		}
		if ret != nvml.SUCCESS {
			// With a new set in the next reading.
			d.dropEvents()
			return xids, fmt.Sprintf("errors of cards (XID) may be missed: %v", ret)
		}
		if event.EventType&nvml.EventTypeXidCriticalError != 0 {
			xids = append(xids, cards.XID{Card: s.whose(event.Device, handles), Code: event.EventData})
		}
	}
	return xids, ""
}

// whose returns the ID of the card that an event is of, also if it is of a part of a card (MIG), or "".
func (s *session) whose(device nvml.Device, handles map[string]nvml.Device) string {
	if device == nil {
		return ""
	}
	id, ret := device.GetUUID()
	if ret == nvml.SUCCESS && strings.HasPrefix(id, "MIG-") {
		whole, ret := device.GetDeviceHandleFromMigDeviceHandle()
		if ret != nvml.SUCCESS || whole == nil {
			return ""
		}
		id, ret = whole.GetUUID()
		if ret == nvml.SUCCESS {
			return id
		}
		device = whole
	} else if ret == nvml.SUCCESS {
		return id
	}
	// A card that has fallen off its bus does not tell its name, but had one.
	for _, named := range []map[string]nvml.Device{handles, s.watched} {
		for id, handle := range named {
			if handle == device {
				return id
			}
		}
	}
	return ""
}

// dropEvents frees the set of events.
func (d *Driver) dropEvents() {
	s := d.open
	if s.events != nil {
		_ = s.events.Free() // of no use any more, whatever it says
	}
	s.events, s.watched, s.lost = nil, make(map[string]nvml.Device), make(map[string]bool)
}

// perLane is what a lane of PCI Express carries in one direction, in 10^6 bytes per second, by generation: transfers per second (2.5, 5, 8, 16, 32 and 64 GT/s) times
// the part of the line code that is data (8/10 up to generation 2, then 128/130), over 8 bits, as in the PCI Express Base Specification. Generation 6 has no line code
// but flits, whose overhead depends on how it is counted: it is taken for twice as fast as generation 5.
var perLane = [...]int64{0, 250, 500, 985, 1969, 3938, 7877}

// bandwidth returns what a link carries: what a lane does, times its width. A generation that is not known yet is at least as fast as the last one that is.
func bandwidth(generation, width int) int64 {
	return perLane[min(max(generation, 0), len(perLane)-1)] * int64(max(width, 0))
}
