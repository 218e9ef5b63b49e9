package driver

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/go-cmp/cmp"

	scv "github.com/berth-scheduler/berth/api/scv/v1alpha1"
	"github.com/berth-scheduler/berth/cmd/berth-scv/internal/cards"
	"github.com/berth-scheduler/berth/cmd/berth-scv/internal/driver/drivertest"
	"github.com/berth-scheduler/berth/test/bubble"
)

// asking returns a Driver of a machine whose kernel has none, as far as that can be seen.
func asking(n nvml.Interface) *Driver { return New(n, func() bool { return false }) }

// read reads, and fails the test on an error.
func read(t *testing.T, d *Driver) cards.Reading {
	t.Helper()
	r, err := d.Read()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// card is what is read of a card of the machine.
func card(i int32) cards.Card {
	return cards.Card{Card: scv.Card{
		ID: fmt.Sprintf("GPU-%d", i), Index: i, Model: "Mock NVIDIA A100-SXM4-40GB", TotalMemoryMiB: 40960, FreeMemoryMiB: 40000,
		ClockMHz: 1215, CoreMHz: 1410, BandwidthMBps: 31504, PowerWatts: 400,
	}}
}

func TestAReadingIsWhatTheMockOfADGXSays(t *testing.T) {
	d := asking(drivertest.DGX())
	want := cards.Reading{Driver: "550.54.15"}
	for i := range int32(8) {
		want.Cards = append(want.Cards, card(i))
	}
	for range 2 {
		if diff := cmp.Diff(want, read(t, d)); diff != "" {
			t.Errorf("reading (-want +got):\n%s", diff)
		}
	}
}

// Of the first card one answer after the other is another one.
func TestAnswersOfACard(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*server.Device)
		want   func(*cards.Card)
	}{
		"a value that it does not support is 0": {func(d *server.Device) {
			d.GetPowerManagementLimitFunc = func() (uint32, nvml.Return) { return 7, nvml.ERROR_NOT_SUPPORTED }
			d.GetMaxPcieLinkWidthFunc = func() (int, nvml.Return) { return 7, nvml.ERROR_NOT_SUPPORTED }
			d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
				return 7, nvml.ERROR_NOT_SUPPORTED
			}
			d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 0, true, true, nvml.ERROR_NOT_SUPPORTED }
		}, func(c *cards.Card) { c.PowerWatts, c.BandwidthMBps = 0, 0 }},
		"without a clock of its SMs, that of its graphics": {func(d *server.Device) {
			clock := d.GetMaxClockInfoFunc
			d.GetMaxClockInfoFunc = func(c nvml.ClockType) (uint32, nvml.Return) {
				if c == nvml.CLOCK_SM {
					return 0, nvml.ERROR_NOT_SUPPORTED
				}
				return clock(c)
			}
		}, func(c *cards.Card) { c.CoreMHz = 1400 }},
		"no more memory is free than there is": {func(d *server.Device) { d.MemoryInfo.Free = d.MemoryInfo.Total + 1<<30 }, func(c *cards.Card) { c.FreeMemoryMiB = 40960 }},
		"a library that does not tell what is reserved": {func(d *server.Device) {
			d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
				return nvml.Memory_v2{Total: 1 << 40, Free: 1 << 40}, nvml.ERROR_ARGUMENT_VERSION_MISMATCH
			}
		}, func(c *cards.Card) { c.TotalMemoryMiB += drivertest.Reserved >> 20 }},
		"more is reserved than there is": {func(d *server.Device) {
			d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
				return nvml.Memory_v2{Total: 1 << 30, Reserved: 1 << 31, Free: 1 << 20}, nvml.SUCCESS
			}
		}, func(c *cards.Card) { c.TotalMemoryMiB, c.FreeMemoryMiB = 0, 0 }},
		"memory that is lost while it is read": {func(d *server.Device) {
			d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{}, nvml.ERROR_GPU_IS_LOST }
		}, func(c *cards.Card) {
			c.Partial, c.TotalMemoryMiB, c.FreeMemoryMiB, c.Reason = true, 0, 0, cards.ReasonLost
		}},
		"a value that fails": {func(d *server.Device) {
			d.GetPowerManagementLimitFunc = func() (uint32, nvml.Return) { return 7, nvml.ERROR_UNKNOWN }
		}, func(c *cards.Card) {
			c.Partial, c.PowerWatts, c.Reason = true, 0, "does not tell its power limit: ERROR_UNKNOWN"
		}},
		"values that it has and does not tell": {func(d *server.Device) {
			d.GetPowerManagementLimitFunc = func() (uint32, nvml.Return) { return 7, nvml.ERROR_NO_PERMISSION }
			d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 7, nvml.ERROR_NO_DATA }
			d.GetRetiredPagesPendingStatusFunc = func() (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_FUNCTION_NOT_FOUND }
		}, func(c *cards.Card) {
			c.Partial, c.PowerWatts = true, 0
			c.Reason = "does not tell its power limit: ERROR_NO_PERMISSION; does not tell its memory errors (ECC): ERROR_NO_DATA; does not tell its retired pages: ERROR_FUNCTION_NOT_FOUND"
		}},
		"no memory": {func(d *server.Device) {
			d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 1 << 40}, nvml.ERROR_NOT_SUPPORTED }
		}, func(c *cards.Card) {
			c.Partial, c.TotalMemoryMiB, c.FreeMemoryMiB, c.Reason = true, 0, 0, "does not tell its memory: ERROR_NOT_SUPPORTED"
		}},
		"lost while it is read": {func(d *server.Device) {
			d.GetMaxPcieLinkGenerationFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_GPU_IS_LOST }
		}, func(c *cards.Card) { c.Partial, c.BandwidthMBps, c.Reason = true, 0, cards.ReasonLost }},
		"a reset": {func(d *server.Device) {
			d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_RESET_REQUIRED }
			d.GetPowerManagementLimitFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_RESET_REQUIRED }
		}, func(c *cards.Card) {
			c.Partial, c.TotalMemoryMiB, c.FreeMemoryMiB, c.PowerWatts, c.Reason = true, 0, 0, 0, cards.ReasonReset
		}},
		"MIG": {func(d *server.Device) { d.MigMode = nvml.DEVICE_MIG_ENABLE }, func(c *cards.Card) { c.Reason = "is partitioned (MIG)" }},
		"ECC": {func(d *server.Device) {
			d.GetTotalEccErrorsFunc = func(kind nvml.MemoryErrorType, counter nvml.EccCounterType) (uint64, nvml.Return) {
				if kind == nvml.MEMORY_ERROR_TYPE_UNCORRECTED && counter == nvml.VOLATILE_ECC {
					return 1, nvml.SUCCESS
				}
				return 0, nvml.SUCCESS
			}
		}, func(c *cards.Card) { c.Reason = cards.ReasonECC }},
		"ECC errors that were corrected, or before the driver was loaded": {func(d *server.Device) {
			d.GetTotalEccErrorsFunc = func(kind nvml.MemoryErrorType, counter nvml.EccCounterType) (uint64, nvml.Return) {
				if kind == nvml.MEMORY_ERROR_TYPE_UNCORRECTED && counter == nvml.VOLATILE_ECC {
					return 0, nvml.SUCCESS
				}
				return 5, nvml.SUCCESS
			}
		}, func(*cards.Card) {}},
		"pages": {func(d *server.Device) {
			d.GetRetiredPagesPendingStatusFunc = func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS }
		}, func(c *cards.Card) { c.Reason = cards.ReasonPagesPending }},
		"rows": {func(d *server.Device) {
			d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 1, 1, true, true, nvml.SUCCESS }
		}, func(c *cards.Card) { c.Reason = cards.ReasonRemapFailed + "; " + cards.ReasonRowsPending }},
		"no errors to be told of": {func(d *server.Device) {
			d.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.ERROR_NOT_SUPPORTED }
		}, func(*cards.Card) {}},
		"errors that cannot be told of": {func(d *server.Device) {
			d.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.ERROR_UNKNOWN }
		}, func(c *cards.Card) { c.Partial, c.Reason = true, "does not tell its errors (XID): ERROR_UNKNOWN" }},
	} {
		t.Run(name, func(t *testing.T) {
			m := drivertest.DGX()
			c.change(m.Cards[0])
			want := card(0)
			c.want(&want)
			if diff := cmp.Diff([]cards.Card{want, card(1)}, read(t, asking(m)).Cards[:2]); diff != "" {
				t.Errorf("cards (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatAnOldDriverHasNoFunctionForIsNotAsked(t *testing.T) {
	m := drivertest.DGX()
	missing := func(symbol string) error { return fmt.Errorf("no %s", symbol) }
	m.ExtensionsFunc = func() nvml.ExtendedInterface { return &mock.ExtendedInterface{LookupSymbolFunc: missing} }
	for _, d := range m.Cards {
		d.GetMigModeFunc, d.GetRemappedRowsFunc, d.GetMemoryInfo_v2Func = nil, nil, nil
	}
	// What it reserves is in what it calls the total.
	if r := read(t, asking(m)); len(r.Cards) != 8 || r.Cards[0].Reason != "" || r.Cards[0].TotalMemoryMiB != 40960+drivertest.Reserved>>20 || r.Cards[0].FreeMemoryMiB != 40000 {
		t.Errorf("reading %+v, want 8 healthy cards, with all their memory", r)
	}
}

func TestACardThatFellOffTheBusIsNotNamedAndTheOthersAre(t *testing.T) {
	m := drivertest.DGX()
	d := asking(m)
	read(t, d)
	handle := m.DeviceGetHandleByIndexFunc
	m.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 3 {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		return handle(i)
	}
	m.Cards[5].GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
	r := read(t, d)
	var ids []string
	for _, c := range r.Cards {
		ids = append(ids, c.ID)
	}
	if got, want := strings.Join(ids, " "), "GPU-0 GPU-1 GPU-2 GPU-4 GPU-6 GPU-7"; got != want {
		t.Errorf("cards %s, want %s", got, want)
	}
	if diff := cmp.Diff([]string{"card 3 has no handle: ERROR_GPU_IS_LOST", "card 5 has no UUID: ERROR_GPU_IS_LOST"}, r.Notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
	m.DeviceGetHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.SUCCESS }
	if r := read(t, d); len(r.Cards) != 0 || len(r.Notes) != 8 {
		t.Errorf("%d cards of handles that are nil", len(r.Cards))
	}
}

func TestErrorsOfCardsAreReadOnceAndAttributed(t *testing.T) {
	m := drivertest.DGX()
	d := asking(m)
	read(t, d)
	m.Cards[6].GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST } // it had one before
	xid := func(device nvml.Device, code uint64) nvml.EventData {
		return nvml.EventData{Device: device, EventType: nvml.EventTypeXidCriticalError, EventData: code, GpuInstanceId: 0xFFFFFFFF, ComputeInstanceId: 0xFFFFFFFF}
	}
	part := &mock.Device{
		GetUUIDFunc: func() (string, nvml.Return) { return "MIG-1", nvml.SUCCESS },
		GetDeviceHandleFromMigDeviceHandleFunc: func() (nvml.Device, nvml.Return) {
			return m.Cards[4], nvml.SUCCESS
		},
	}
	orphan := &mock.Device{
		GetUUIDFunc:                            func() (string, nvml.Return) { return "MIG-2", nvml.SUCCESS },
		GetDeviceHandleFromMigDeviceHandleFunc: func() (nvml.Device, nvml.Return) { return nil, nvml.ERROR_NOT_FOUND },
	}
	whole := xid(m.Cards[2], 48)
	whole.GpuInstanceId, whole.ComputeInstanceId = 1, 0
	m.Events = []nvml.EventData{
		xid(m.Cards[1], 31), xid(m.Cards[1], 79), xid(m.Cards[6], 79), whole, xid(part, 94), xid(orphan, 95), xid(nil, 119),
		{Device: m.Cards[0], EventType: nvml.EventTypePState, EventData: 5},
	}
	want := []cards.XID{{Card: "GPU-1", Code: 31}, {Card: "GPU-1", Code: 79}, {Card: "GPU-6", Code: 79}, {Card: "GPU-2", Code: 48}, {Card: "GPU-4", Code: 94}, {Code: 95}, {Code: 119}}
	if diff := cmp.Diff(want, read(t, d).XIDs); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	if again := read(t, d).XIDs; again != nil {
		t.Errorf("errors are read again: %v", again)
	}
	if n := len(m.Cards[1].RegisterEventsCalls()); n != 1 {
		t.Errorf("a card was registered %d times, want once", n)
	}
}

func TestAStormOfErrorsDoesNotHoldUpAReading(t *testing.T) {
	m := drivertest.DGX()
	d := asking(m)
	for range 1000 {
		m.Events = append(m.Events, nvml.EventData{Device: m.Cards[0], EventType: nvml.EventTypeXidCriticalError, EventData: 31})
	}
	if n := len(read(t, d).XIDs); n != 256 {
		t.Errorf("%d errors in a reading, want 256", n)
	}
}

func TestASetOfEventsThatFailsIsReplaced(t *testing.T) {
	m := drivertest.DGX()
	d := asking(m)
	m.Wait = nvml.ERROR_UNKNOWN
	if r := read(t, d); len(r.Cards) != 8 || len(r.Notes) != 1 || !r.Missed || m.Sets != 0 {
		t.Errorf("%d cards, notes %q, missed: %v, %d sets: want 8, a note, that some may be missed, and none", len(r.Cards), r.Notes, r.Missed, m.Sets)
	}
	m.Wait = nvml.ERROR_TIMEOUT
	m.Events = []nvml.EventData{{Device: m.Cards[0], EventType: nvml.EventTypeXidCriticalError, EventData: 79}}
	if r := read(t, d); len(r.XIDs) != 1 || len(r.Notes) != 0 || r.Missed || m.Sets != 1 {
		t.Errorf("errors %v, notes %q, %d sets: want an error, no note and one", r.XIDs, r.Notes, m.Sets)
	}
	d.Close()
	if m.Sets != 0 || len(m.ShutdownCalls()) != 1 {
		t.Errorf("%d sets, %d shutdowns after Close: want 0 and 1", m.Sets, len(m.ShutdownCalls()))
	}
}

// The mock of NVIDIA panics where it has no function, and so may a binding.
func TestAPanicIsAnErrorThatNamesIt(t *testing.T) {
	d := asking(dgxa100.New())
	if _, err := d.Read(); err == nil || !strings.Contains(err.Error(), "GetMemoryInfo_v2") {
		t.Errorf("error %v, want one that names GetMemoryInfo_v2", err)
	}
	m := drivertest.DGX()
	d = asking(m)
	m.Cards[2].GetNameFunc = func() (string, nvml.Return) { panic("no such page") }
	if _, err := d.Read(); err == nil || !strings.Contains(err.Error(), "no such page") {
		t.Errorf("error %v, want one that names the panic", err)
	}
	m.Cards[2].GetNameFunc = func() (string, nvml.Return) { return "A100", nvml.SUCCESS }
	if r := read(t, d); len(r.Cards) != 8 {
		t.Errorf("%d cards after the panic, want 8", len(r.Cards))
	}
}

func TestAMachineWithoutADriverIsNoErrorAndADriverMayComeLate(t *testing.T) {
	m := drivertest.DGX()
	d := asking(m)
	for _, c := range []struct {
		ret  nvml.Return
		want cards.Reading
	}{
		{nvml.ERROR_LIBRARY_NOT_FOUND, cards.Reading{Absent: "the driver's library (libnvidia-ml.so.1) is not there"}},
		{nvml.ERROR_DRIVER_NOT_LOADED, cards.Reading{Absent: "the driver is not loaded"}},
		{nvml.ERROR_LIB_RM_VERSION_MISMATCH, cards.Reading{Absent: "the driver is of another version than its library", Mismatch: true}},
	} {
		m.InitFunc = func() nvml.Return { return c.ret }
		if diff := cmp.Diff(c.want, read(t, d)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.ret, diff)
		}
	}
	m.InitFunc = func() nvml.Return { return nvml.ERROR_UNKNOWN }
	if _, err := d.Read(); err == nil || !strings.Contains(err.Error(), "initialize NVML: ERROR_UNKNOWN") {
		t.Errorf("error %v, want the one of the initialization", err)
	}
	m.InitFunc = func() nvml.Return { return nvml.SUCCESS }
	if r := read(t, d); len(r.Cards) != 8 {
		t.Errorf("%d cards, want 8", len(r.Cards))
	}
}

func TestADriverWithoutALibraryIsSeen(t *testing.T) {
	m := drivertest.DGX()
	begin := m.InitFunc
	loaded := false
	d := New(m, func() bool { return loaded })
	m.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }
	for range 2 {
		if r := read(t, d); r.Unseen != loaded || r.Absent != cards.ReasonNoLibrary {
			t.Errorf("reading %+v of a driver that is loaded: %v", r, loaded)
		}
		loaded = true
	}
	m.InitFunc = begin
	if r := read(t, d); r.Unseen || len(r.Cards) != 8 {
		t.Errorf("reading %+v when the library has come, want 8 cards", r)
	}
}

func TestAMachineWithoutCardsIsNoError(t *testing.T) {
	if diff := cmp.Diff(cards.Reading{Driver: "550.54.15"}, read(t, asking(dgxa100.NewWithGPUs()))); diff != "" {
		t.Errorf("reading (-want +got):\n%s", diff)
	}
}

func TestADriverThatWasAwayHasBeenLoadedAnew(t *testing.T) {
	m := drivertest.DGX()
	d := asking(m)
	loads := func() (all []int) {
		for range 2 {
			all = append(all, read(t, d).Load)
		}
		return all
	}
	if got := loads(); got[1] != 0 {
		t.Fatalf("loads %v, want none", got)
	}

	// An error that says nothing of the kind begins a session anew, and no more.
	count := m.DeviceGetCountFunc
	m.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
	if _, err := d.Read(); err == nil || !strings.Contains(err.Error(), "count the cards: ERROR_UNKNOWN") {
		t.Errorf("error %v, want the one of the count", err)
	}
	m.DeviceGetCountFunc = count
	if got := loads(); got[1] != 0 || len(m.InitCalls()) != 2 || len(m.ShutdownCalls()) != 1 {
		t.Errorf("loads %v, %d initializations, %d shutdowns: want none, 2 and 1", got, len(m.InitCalls()), len(m.ShutdownCalls()))
	}

	m.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_DRIVER_NOT_LOADED }
	if r := read(t, d); r.Absent == "" {
		t.Errorf("reading %+v of a driver that is not loaded", r)
	}
	m.DeviceGetCountFunc = count
	if got := loads(); got[0] != 1 || got[1] != 1 {
		t.Errorf("loads %v after the driver was away, want one", got)
	}

	// Or is another one.
	m.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
	if _, err := d.Read(); err == nil {
		t.Error("no error of the count")
	}
	m.DeviceGetCountFunc, m.DriverVersion = count, "560.1"
	if got := loads(); got[0] != 2 || got[1] != 2 {
		t.Errorf("loads %v with another driver, want two", got)
	}
}

// fail has a reading fail, and so a session end.
func fail(t *testing.T, m *drivertest.Machine, d *Driver) {
	t.Helper()
	count := m.DeviceGetCountFunc
	m.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
	if _, err := d.Read(); err == nil {
		t.Error("no error of the count")
	}
	m.DeviceGetCountFunc = count
}

func TestAVersionThatIsNotToldIsNoOther(t *testing.T) {
	m := drivertest.DGX()
	d := asking(m)
	read(t, d)
	version := m.SystemGetDriverVersionFunc
	for _, c := range []struct {
		version string
		ret     nvml.Return
	}{{"", nvml.ERROR_UNKNOWN}, {"", nvml.SUCCESS}} {
		m.SystemGetDriverVersionFunc = func() (string, nvml.Return) { return c.version, c.ret }
		fail(t, m, d)
		if r := read(t, d); r.Load != 0 || r.Driver != "" {
			t.Errorf("load %d of driver %q, want none of none", r.Load, r.Driver)
		}
		// It is asked for again, also in a session that goes on.
		m.SystemGetDriverVersionFunc = version
		if r := read(t, d); r.Load != 0 || r.Driver != "550.54.15" {
			t.Errorf("load %d of driver %q, want none of 550.54.15", r.Load, r.Driver)
		}
	}
	m.SystemGetDriverVersionFunc = func() (string, nvml.Return) { return "", nvml.ERROR_UNKNOWN }
	fail(t, m, d)
	read(t, d)
	m.SystemGetDriverVersionFunc = func() (string, nvml.Return) { return "560.1", nvml.SUCCESS }
	if r := read(t, d); r.Load != 1 {
		t.Errorf("load %d with another version, want one", r.Load)
	}
}

func TestErrorsOfCardsOutliveASessionThatFailsButNoDriver(t *testing.T) {
	for _, x := range []struct {
		begin nvml.Return
		want  []cards.XID
	}{{nvml.ERROR_UNKNOWN, []cards.XID{{Card: "GPU-1", Code: 79}}}, {nvml.ERROR_DRIVER_NOT_LOADED, nil}} {
		m := drivertest.DGX()
		d := asking(m)
		read(t, d)
		m.Events = []nvml.EventData{{Device: m.Cards[1], EventType: nvml.EventTypeXidCriticalError, EventData: 79}}
		m.Wait = nvml.ERROR_UNKNOWN
		fail(t, m, d)
		m.Wait = nvml.ERROR_TIMEOUT
		begin := m.InitFunc
		m.InitFunc = func() nvml.Return { return x.begin }
		_, _ = d.Read()
		m.InitFunc = begin
		if r := read(t, d); !cmp.Equal(r.XIDs, x.want) || r.Missed != (x.want != nil) {
			t.Errorf("%v: errors %v, missed: %v; want %v, and that some may be missed if there are", x.begin, r.XIDs, r.Missed, x.want)
		}
		if r := read(t, d); r.XIDs != nil || r.Missed {
			t.Errorf("%v: errors %v again, missed: %v", x.begin, r.XIDs, r.Missed)
		}
	}
}

func TestOnlyADriverThatIsNotLoadedWasAway(t *testing.T) {
	for ret, want := range map[nvml.Return]int{
		nvml.ERROR_LIBRARY_NOT_FOUND: 0, nvml.ERROR_GPU_NOT_FOUND: 0, nvml.ERROR_LIB_RM_VERSION_MISMATCH: 0, nvml.ERROR_UNKNOWN: 0, nvml.ERROR_DRIVER_NOT_LOADED: 1,
	} {
		m := drivertest.DGX()
		d := asking(m)
		read(t, d)
		fail(t, m, d)
		begin := m.InitFunc
		m.InitFunc = func() nvml.Return { return ret }
		_, _ = d.Read()
		m.InitFunc = begin
		if r := read(t, d); r.Load != want {
			t.Errorf("%v: %d loads, want %d", ret, r.Load, want)
		}
	}
}

func TestASessionThatHasNotBegunIsNone(t *testing.T) {
	m := drivertest.DGX()
	d := asking(m)
	functions := m.ExtensionsFunc
	for want, f := range map[string]func() nvml.ExtendedInterface{
		"look for the functions of NVML: there is no way to": func() nvml.ExtendedInterface { return nil },
		"ask the driver: panic: no such page":                func() nvml.ExtendedInterface { panic("no such page") },
	} {
		m.ExtensionsFunc = f
		for range 2 {
			if _, err := d.Read(); err == nil || err.Error() != want {
				t.Errorf("error %v, want %q", err, want)
			}
		}
	}
	if begun, ended := len(m.InitCalls()), len(m.ShutdownCalls()); begun != 4 || ended != 4 {
		t.Errorf("%d initializations and %d shutdowns, want 4 each", begun, ended)
	}
	m.ExtensionsFunc = functions
	m.Cards[0].MigMode = nvml.DEVICE_MIG_ENABLE
	if r := read(t, d); len(r.Cards) != 8 || r.Cards[0].Reason != cards.ReasonPartitioned {
		t.Errorf("reading %+v, want 8 cards, one of them partitioned", r)
	}
}

func TestACardThatWasLostIsWatchedAnewWhenItIsBack(t *testing.T) {
	m := drivertest.DGX()
	d := asking(m)
	read(t, d)
	handle, name := m.DeviceGetHandleByIndexFunc, m.Cards[3].GetNameFunc
	for i, c := range []struct{ lose, find func() }{
		{func() {
			m.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
				if i == 3 {
					return nil, nvml.ERROR_GPU_IS_LOST
				}
				return handle(i)
			}
		}, func() { m.DeviceGetHandleByIndexFunc = handle }},
		{func() {
			m.Cards[3].GetNameFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
		}, func() { m.Cards[3].GetNameFunc = name }},
	} {
		c.lose()
		read(t, d)
		// Its errors are its own nevertheless.
		m.Events = []nvml.EventData{{Device: m.Cards[3], EventType: nvml.EventTypeXidCriticalError, EventData: 79}}
		if r := read(t, d); !cmp.Equal(r.XIDs, []cards.XID{{Card: "GPU-3", Code: 79}}) {
			t.Errorf("errors %v, want one of GPU-3", r.XIDs)
		}
		c.find()
		read(t, d)
		read(t, d)
		if lost, other := len(m.Cards[3].RegisterEventsCalls()), len(m.Cards[4].RegisterEventsCalls()); lost != 2+i || other != 1 {
			t.Errorf("it was registered %d times, and another one %d times: want %d and once", lost, other, 2+i)
		}
	}
}

func TestWhileACardIsLostASessionLastsAMinute(t *testing.T) {
	for name, lose := range map[string]func(*drivertest.Machine){
		"no handle": func(m *drivertest.Machine) {
			handle := m.DeviceGetHandleByIndexFunc
			m.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
				if i == 3 {
					return nil, nvml.ERROR_GPU_IS_LOST
				}
				return handle(i)
			}
		},
		"no UUID": func(m *drivertest.Machine) {
			m.Cards[3].GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
		},
		"no name": func(m *drivertest.Machine) {
			m.Cards[3].GetNameFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
		},
		"not there": func(m *drivertest.Machine) {
			m.DeviceGetCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m := drivertest.DGX()
				d := asking(m)
				pass := func(long time.Duration) {
					for range long / time.Second {
						<-time.NewTimer(time.Second).C
						read(t, d)
					}
				}
				if pass(time.Hour); len(m.InitCalls()) != 1 {
					t.Errorf("%d sessions while all is well, want one", len(m.InitCalls()))
				}
				lose(m)
				if pass(10 * time.Minute); len(m.InitCalls()) != 10 {
					t.Errorf("%d sessions in 10 minutes with a card that is lost, want another one each minute", len(m.InitCalls()))
				}
			})
		})
	}
}

func TestBandwidthOfLinks(t *testing.T) {
	for _, c := range []struct {
		generation, width int
		want              int64
	}{{3, 16, 15760}, {4, 16, 31504}, {5, 16, 63008}, {1, 1, 250}, {6, 16, 126032}, {7, 16, 126032}, {0, 16, 0}, {3, 0, 0}, {-1, -1, 0}} {
		if got := bandwidth(c.generation, c.width); got != c.want {
			t.Errorf("generation %d x%d: %d MB/s, want %d", c.generation, c.width, got, c.want)
		}
	}
}

// The wait for events says that a card is lost, of a set in which it is. Errors of the others may have been in it; they are watched anew, without that card.
func TestALostCardIsADoubtAboutTheOthersOnce(t *testing.T) {
	m := drivertest.DGX()
	d := asking(m)
	read(t, d)
	m.Cards[3].GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
	m.Wait = nvml.ERROR_GPU_IS_LOST
	if r := read(t, d); !r.Missed {
		t.Error("it is not told that errors may be missed")
	}
	m.Wait = nvml.ERROR_TIMEOUT
	for range 2 {
		r := read(t, d)
		if r.Missed {
			t.Error("errors are missed still")
		}
		for i, c := range r.Cards {
			if lost := c.Reason == cards.ReasonLost; lost != (i == 3) {
				t.Errorf("card %d: %q", i, c.Reason)
			}
		}
	}
	if lost, other := len(m.Cards[3].RegisterEventsCalls()), len(m.Cards[4].RegisterEventsCalls()); lost != 1 || other != 2 {
		t.Errorf("registered are the lost one %d times, and another one %d times: want once and twice", lost, other)
	}
}
